"""User level, where phases import it from; see `anyaccel.user_level`."""

from anyaccel.user_level import user_level as user_level
