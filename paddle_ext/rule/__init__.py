"""The rule behind `paddle_ext.adaptive`: docs/adaptive.md.

`likelihood` learns from labelled rows, with `metric`, `correction` and `logistic`; `solve`
classifies a batch by a likelihood, with the engine for many `small` tasks or the one for a `large`
one; `names` adds class names.
"""
