"""One task in, a trained network out, resumable at any moment."""

from nearkin.observer import Observer
from nearkin.training.engine import TrainingError, train
from nearkin.training.gradient_caching import backward_in_chunks
from nearkin.training.protocol import Protocol, Scorer
from nearkin.training.result import DataSummary, NetworkResult, Result, SplitSummary, TestEmbeddings
from nearkin.training.run import Description, Run, RunError
from nearkin.training.schedules import Schedule
from nearkin.training.settings import TrainingSettings
from nearkin.training.task import LearningRates, Task

__all__ = [
    "DataSummary",
    "Description",
    "LearningRates",
    "NetworkResult",
    "Observer",
    "Protocol",
    "Result",
    "Run",
    "RunError",
    "Schedule",
    "Scorer",
    "SplitSummary",
    "Task",
    "TestEmbeddings",
    "TrainingError",
    "TrainingSettings",
    "backward_in_chunks",
    "train",
]
