"""Checked torch functions on top of the native code; importing them registers its operators."""

from . import adapt, paddle, sinkhorn, tim  # noqa: F401
