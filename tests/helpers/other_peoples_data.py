"""Data sets as other people write them."""

from __future__ import annotations

from torch.utils.data import Dataset


class Pairs(Dataset):
    """A torch data set over a list of (sample, label)."""

    def __init__(self, pairs, **attributes):
        self.pairs = pairs
        self.fetched = 0
        vars(self).update(attributes)

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        self.fetched += 1
        return self.pairs[index]


class Columns:
    """What is used of a Hugging Face data set."""

    def __init__(self, rows, names=None):
        self.rows = rows
        self.column_names = list(rows[0]) if rows else ["text", "label"]
        self.features = dict.fromkeys(self.column_names)
        if names is not None:
            self.features["label"] = type("ClassLabel", (), {"names": names})()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]
