"""`anyaccel new-plugin`: writes a plugin project that installs, passes the conformance kit and trains.

`command` checks the arguments and writes the files, `base_backend` finds the backend class that a chip derives from,
`project_files` fills in the templates. Stands on the registry and `testing.subject_discovery`.
"""

from anyaccel_devtools.commands.new_plugin.command import run

__all__ = ["run"]
