"""Few-shot tasks drawn from a feature bank."""

from .sampler import TaskBatch, TaskSampler

__all__ = ["TaskBatch", "TaskSampler"]
