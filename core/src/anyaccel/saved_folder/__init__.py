"""Saved folders: a JSON manifest and safetensors, which hold what was written last or what was there before; no pickle.

Stands on nothing but the kernel's errors and the checks of arguments.
"""

from anyaccel.saved_folder.folder import GROUP, part, publish, read, write
from anyaccel.saved_folder.manifest import MANIFEST, SCHEMA_VERSION
from anyaccel.saved_folder.open_storage import storage_of
from anyaccel.saved_folder.remote_storage import is_url
from anyaccel.saved_folder.shards import INDEX
from anyaccel.saved_folder.storage import Storage

__all__ = [
    "GROUP",
    "INDEX",
    "MANIFEST",
    "SCHEMA_VERSION",
    "Storage",
    "is_url",
    "part",
    "publish",
    "read",
    "storage_of",
    "write",
]
