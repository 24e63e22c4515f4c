"""Network weights: the list of files, the cache, and loading into modules."""

from anonface.weights.files import cache_dir, digest, path, pull, status, verify
from anonface.weights.loading import fit, graph, load, load_checkpoint, tensors
from anonface.weights.manifest import Entry, Status, entries, entry

__all__ = [
    "Entry",
    "Status",
    "cache_dir",
    "digest",
    "entries",
    "entry",
    "fit",
    "graph",
    "load",
    "load_checkpoint",
    "path",
    "pull",
    "status",
    "tensors",
    "verify",
]
