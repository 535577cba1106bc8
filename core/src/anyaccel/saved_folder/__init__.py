"""Saved folders: a JSON manifest and safetensors, with the complete latest or previous content; no pickle.

Stands on nothing but the kernel's errors and the checks of arguments.
"""

from anyaccel.saved_folder.folder import GROUP, local_path, part, publish, read, storage_of, storage_of_file, write
from anyaccel.saved_folder.manifest import MANIFEST, SCHEMA_VERSION, is_damaged, is_newer, is_saved
from anyaccel.saved_folder.remote_storage import is_url
from anyaccel.saved_folder.shards import INDEX
from anyaccel.saved_folder.storage import Storage

__all__ = [
    "GROUP",
    "INDEX",
    "MANIFEST",
    "SCHEMA_VERSION",
    "Storage",
    "is_damaged",
    "is_newer",
    "is_saved",
    "is_url",
    "local_path",
    "part",
    "publish",
    "read",
    "storage_of",
    "storage_of_file",
    "write",
]
