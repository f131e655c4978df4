"""How a run is selected and tested, so that its test score means something."""

# One line per protocol; each file registers what it defines.
from nearkin.protocols import cross_validation as cross_validation
from nearkin.protocols import fixed_validation as fixed_validation
from nearkin.protocols import standard as standard
from nearkin.protocols import standard_best_on_test as standard_best_on_test
from nearkin.protocols.base import Learnt, Protocol, names, register, selects_on_test
from nearkin.protocols.examination import Examination, examine
from nearkin.protocols.execution import Finished, execute, reopened
from nearkin.protocols.opened import Opened
from nearkin.protocols.sealed import SealedTest, score_test, seal
from nearkin.protocols.training_data import TrainingData, open_data

__all__ = [
    "Examination",
    "Finished",
    "Learnt",
    "Opened",
    "Protocol",
    "SealedTest",
    "TrainingData",
    "examine",
    "execute",
    "names",
    "open_data",
    "register",
    "reopened",
    "score_test",
    "seal",
    "selects_on_test",
]
