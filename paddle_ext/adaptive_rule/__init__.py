"""The rule behind `paddle_ext.adaptive`, explained in docs/adaptive.md.

`learn` turns labelled rows into a `likelihood`; `label_noise` and `correction` refine it.
`classify` turns a likelihood and a batch into probabilities: many small tasks in one native call, a
`large` one in chunks. `solve` is the function `adaptive`, and `names` adds class names.
"""
