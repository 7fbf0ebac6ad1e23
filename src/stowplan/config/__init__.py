"""KubeSchedulerConfiguration: its structs, defaults and validation."""

from stowplan.config.duration import Duration
from stowplan.config.load import LoadedConfig, load
from stowplan.config.types import (
    EXTENSION_POINTS,
    ClientConnection,
    ExtenderConfig,
    KubeSchedulerConfiguration,
    LeaderElection,
    PluginConfig,
    PluginEntry,
    Plugins,
    PluginSet,
    ProfileConfig,
)

__all__ = [
    "EXTENSION_POINTS",
    "ClientConnection",
    "Duration",
    "ExtenderConfig",
    "KubeSchedulerConfiguration",
    "LeaderElection",
    "LoadedConfig",
    "PluginConfig",
    "PluginEntry",
    "PluginSet",
    "Plugins",
    "ProfileConfig",
    "load",
]
