"""A model and many samples: search, duplicates, clusters, and what looks wrong."""

from nearkin.index.evaluating import IndexEvaluation, SearchQuality
from nearkin.index.filters import parse_where
from nearkin.index.groups import Group, LabelError, Outlier
from nearkin.index.index import Index
from nearkin.index.items import Added, Hit, Item, NewItem

__all__ = [
    "Added",
    "Group",
    "Hit",
    "Index",
    "IndexEvaluation",
    "Item",
    "LabelError",
    "NewItem",
    "Outlier",
    "SearchQuality",
    "parse_where",
]
