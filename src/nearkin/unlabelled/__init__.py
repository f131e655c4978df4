"""How samples without a label are learnt from: one file per method, a registered choice of a recipe.

A method is a loss that asks for no labels together with the batches it needs. In a recipe it is the table
``[unlabelled]``; the recipe's own loss then learns from the samples with a label, if there are any, and the
method from those without, ``unlabelled.weight`` times. A new method is one file with ``@register("name")``
and one import here.
"""

from nearkin.unlabelled.base import Method, Setting, build, names, register, registry
from nearkin.unlabelled.instance import Instance
from nearkin.unlabelled.pseudo_labels import PseudoLabels
from nearkin.unlabelled.stml import STML

__all__ = [
    "STML",
    "Instance",
    "Method",
    "PseudoLabels",
    "Setting",
    "build",
    "names",
    "register",
    "registry",
]
