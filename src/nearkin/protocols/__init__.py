"""How a run is selected and tested, so that its test score means something."""

from nearkin.protocols.examination import Examination, examine
from nearkin.protocols.execution import Finished, execute, open_data, training_splits
from nearkin.protocols.sealed import Opened, SealedTest, score_test

__all__ = [
    "Examination",
    "Finished",
    "Opened",
    "SealedTest",
    "examine",
    "execute",
    "open_data",
    "score_test",
    "training_splits",
]
