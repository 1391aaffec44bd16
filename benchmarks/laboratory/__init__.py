"""The laboratory: tasks, banks, rules and baselines that `benchmarks/panel.py` compares."""
