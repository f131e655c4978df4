"""The table of data sets."""

from __future__ import annotations

from nearkin.data.samples import DataSet
from nearkin.registry import Registry

registry: Registry[DataSet] = Registry("data set")
