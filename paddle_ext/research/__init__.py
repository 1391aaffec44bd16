"""Experiments with the methods: tasks, data, networks, evaluation and the demo."""
