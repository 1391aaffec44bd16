"""The rule behind `paddle_ext.adaptive`, explained in docs/adaptive.md.

`likelihood` learns from labelled rows; `hubs`, `label_noise` and `correction` refine what it
learns. `solve` classifies a batch with a likelihood, by the engine for many `small` tasks or for
one `large` task, and `names` adds class names.
"""
