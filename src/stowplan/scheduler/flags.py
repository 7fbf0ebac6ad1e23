"""Every flag of `stowplan run`: kube-scheduler's with its names, types and defaults, older ones, and ours."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from stowplan.config import ClientConnection, Duration, LeaderElection
from stowplan.scheduler.flag_parser import (
    AGE,
    BOOL,
    CERTIFICATES,
    DURATION,
    FLOAT,
    INT,
    INT32,
    INT32S,
    IP,
    LEVEL,
    LOG_FORMAT,
    PAIRS,
    PORT,
    SIZE,
    SIZE_OR_NONE,
    SOME_SIZE,
    STRING,
    STRINGS,
    SWITCHES,
    TLS_VERSION,
    VERSION,
    Flag,
)

_INTRODUCTION = (
    "Schedules the pods of a Kubernetes cluster, as kube-scheduler does, with kube-scheduler's flags and "
    "configuration, and with plugins in Python."
)
_NOTES = {
    "Deprecated": "They count only without --config, where not said otherwise.",
    "Old": "Flags that kube-scheduler once had, taken with a warning. They count only without --config.",
}


_CLIENT, _ELECTION = ClientConnection(), LeaderElection()
_NO_HTTP2 = "HTTP/2 is never served"
_NO_PROXY = "no proxy may say who a user is"
_ALL_METRICS = "all metrics are shown with all their labels"
_ONE_STREAM = "all lines go to standard error, at once"
_ONE_VERSION = "decisions are those of kube-scheduler 1.36"
_NO_INSECURE_PORT = "there is only HTTPS, at --bind-address and --secure-port"
_ONLY_STDERR = "lines go to standard error alone"

MISC = (
    Flag(
        "config",
        STRING,
        "",
        "The file with the KubeSchedulerConfiguration, of any version, or with a legacy Policy. With it, all "
        "deprecated flags but --pod-max-in-unschedulable-pods-duration are ignored.",
    ),
    Flag(
        "write-config-to",
        STRING,
        "",
        "Write the configuration with all defaults to this file, as YAML of version v1, and exit.",
    ),
    Flag(
        "master", STRING, "", "The address of the API server. It goes before the one named in the kubeconfig."
    ),
)
STOWPLAN = (
    Flag(
        "plugin-dir",
        STRINGS,
        (),
        "Folders with plugins: each class derived from Plugin in their *.py files can be named in the "
        "configuration. A file that changes is read again at once; if it is broken, the plugins stay as they "
        "were. May be given again.",
    ),
    Flag(
        "decisions-memory",
        SIZE_OR_NONE,
        "64Mi",
        "How much memory recent decisions may take, for /debug/decisions; 0 keeps none.",
    ),
    Flag(
        "journal",
        STRING,
        "",
        "The directory where all decisions are kept, as Parquet files. Without it, only memory has them.",
    ),
    Flag("journal-size", SOME_SIZE, "1Gi", "How large the journal may get; the oldest files are deleted."),
    Flag("journal-age", AGE, Duration(7 * 24 * 3600), "How old files of the journal may get."),
    Flag(
        "seed",
        INT,
        None,
        "Draw among equally good nodes with this seed, so that a run can be repeated. Without it, every run "
        "draws differently.",
    ),
)
SECURE_SERVING = (
    Flag("bind-address", IP, "0.0.0.0", "The address to listen at for HTTPS; 0.0.0.0 or :: is all of them."),
    Flag("secure-port", PORT, 10259, "The port of the HTTPS server; 0 is none."),
    Flag(
        "cert-dir",
        STRING,
        "",
        "Where a certificate made at the start is kept. It is not needed with --tls-cert-file and "
        "--tls-private-key-file; if empty, the certificate is kept in memory.",
    ),
    Flag(
        "tls-cert-file",
        STRING,
        "",
        "The certificate of the HTTPS server, with any that link it to its CA. If neither this nor "
        "--tls-private-key-file is given, one for localhost and 127.0.0.1 is made.",
    ),
    Flag("tls-private-key-file", STRING, "", "The private key that belongs to --tls-cert-file."),
    Flag(
        "tls-sni-cert-key",
        CERTIFICATES,
        (),
        "CERTIFICATE,KEY or CERTIFICATE,KEY:NAME,NAME: files for clients that ask for these host names. May "
        "be given more than once.",
    ),
    Flag(
        "tls-cipher-suites",
        STRINGS,
        (),
        "The cipher suites allowed up to TLS 1.2, by their names of the standard.",
    ),
    Flag(
        "tls-min-version",
        TLS_VERSION,
        "",
        "The lowest TLS version: VersionTLS12 (if empty) or VersionTLS13. VersionTLS10 and VersionTLS11 are "
        "taken for VersionTLS12.",
    ),
    Flag(
        "tls-curve-preferences",
        INT32S,
        (),
        "The curves for the exchange of keys, by their numbers.",
        no_effect="Python's TLS chooses them",
    ),
    Flag(
        "http2-max-streams-per-connection",
        INT,
        0,
        "How many streams a client may have at once.",
        no_effect=_NO_HTTP2,
    ),
    Flag("disable-http2-serving", BOOL, False, "Serve no HTTP/2.", no_effect=_NO_HTTP2),
    Flag("permit-port-sharing", BOOL, False, "Let other processes listen at the port, too (SO_REUSEPORT)."),
    Flag(
        "permit-address-sharing",
        BOOL,
        False,
        "Listen although connections of an earlier process are still being closed (SO_REUSEADDR).",
    ),
)
AUTHENTICATION = (
    Flag(
        "authentication-kubeconfig",
        STRING,
        "",
        "The kubeconfig with which tokens are reviewed (tokenreviews.authentication.k8s.io). Without it, "
        "the account of the pod does; outside of a cluster, who comes with a token is anonymous.",
    ),
    Flag(
        "authentication-skip-lookup",
        BOOL,
        False,
        "Do not ask the cluster for the CA of client certificates.",
    ),
    Flag(
        "authentication-token-webhook-cache-ttl",
        DURATION,
        Duration(10),
        "How long the answer about a token counts.",
    ),
    Flag(
        "authentication-tolerate-lookup-failure",
        BOOL,
        True,
        "Start even if the cluster cannot be asked for the CA of client certificates.",
    ),
    Flag("client-ca-file", STRING, "", "The CA whose client certificates say who a user is."),
    Flag(
        "requestheader-client-ca-file",
        STRING,
        "",
        "The CA of proxies that say who a user is.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-allowed-names",
        STRINGS,
        (),
        "The names that proxies have in their certificates.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-username-headers",
        STRINGS,
        ("x-remote-user",),
        "Headers in which proxies put the name of the user.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-uid-headers",
        STRINGS,
        (),
        "Headers in which proxies put the UID of the user.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-group-headers",
        STRINGS,
        ("x-remote-group",),
        "Headers in which proxies put the groups of the user.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-extra-headers-prefix",
        STRINGS,
        ("x-remote-extra-",),
        "How headers begin in which proxies put anything else.",
        no_effect=_NO_PROXY,
    ),
)
AUTHORIZATION = (
    Flag(
        "authorization-kubeconfig",
        STRING,
        "",
        "The kubeconfig with which requests are reviewed (subjectaccessreviews.authorization.k8s.io). "
        "Without it, the account of the pod does; outside of a cluster, only what is always allowed is.",
    ),
    Flag(
        "authorization-always-allow-paths",
        STRINGS,
        ("/healthz", "/readyz", "/livez"),
        "Paths that anyone may get.",
    ),
    Flag(
        "authorization-webhook-cache-authorized-ttl",
        DURATION,
        Duration(10),
        "How long a request that was allowed stays so.",
    ),
    Flag(
        "authorization-webhook-cache-unauthorized-ttl",
        DURATION,
        Duration(10),
        "How long a request that was refused stays so.",
    ),
)
DEPRECATED = (
    Flag(
        "kubeconfig",
        STRING,
        "",
        "The kubeconfig to reach the API server.",
        instead="clientConnection.kubeconfig",
    ),
    Flag(
        "kube-api-content-type",
        STRING,
        _CLIENT.content_type,
        "The content type to ask the API server for; JSON is spoken whatever it says.",
        instead="clientConnection.contentType",
    ),
    Flag(
        "kube-api-qps",
        FLOAT,
        _CLIENT.qps,
        "How many requests a second the API server gets in the long run.",
        instead="clientConnection.qps",
    ),
    Flag(
        "kube-api-burst",
        INT32,
        _CLIENT.burst,
        "How many more requests the API server gets at once after a pause.",
        instead="clientConnection.burst",
    ),
    Flag(
        "profiling",
        BOOL,
        True,
        "Sets enableProfiling; /debug/pprof is not served whatever it says.",
        instead="enableProfiling",
    ),
    Flag(
        "contention-profiling",
        BOOL,
        True,
        "Sets enableContentionProfiling; /debug/pprof is not served whatever it says.",
        instead="enableContentionProfiling",
    ),
    Flag(
        "pod-max-in-unschedulable-pods-duration",
        DURATION,
        Duration(300),
        "When a pod that nothing woke is tried again. It counts with --config, too.",
    ),
)
LEADER_ELECTION = (
    Flag(
        "leader-elect",
        BOOL,
        _ELECTION.leader_elect,
        "Schedule only while holding a lease, so that of several replicas one does.",
    ),
    Flag(
        "leader-elect-lease-duration",
        DURATION,
        _ELECTION.lease_duration,
        "How long others wait after the holder's last sign of life before they take the lease.",
    ),
    Flag(
        "leader-elect-renew-deadline",
        DURATION,
        _ELECTION.renew_deadline,
        "How long the holder tries to renew the lease before it gives up. Less than the lease lasts.",
    ),
    Flag(
        "leader-elect-retry-period",
        DURATION,
        _ELECTION.retry_period,
        "The pause between two tries at the lease.",
    ),
    Flag("leader-elect-resource-lock", STRING, _ELECTION.resource_lock, "The kind of lock: leases."),
    Flag("leader-elect-resource-name", STRING, _ELECTION.resource_name, "The name of the lease."),
    Flag(
        "leader-elect-resource-namespace", STRING, _ELECTION.resource_namespace, "The namespace of the lease."
    ),
)
FEATURE_GATE = (
    Flag(
        "feature-gates",
        SWITCHES,
        {},
        "GATE=true or GATE=false, separated by commas. Features are as kube-scheduler 1.36 has them by "
        "default; a gate that asks for anything else is accepted without effect, with a warning.",
    ),
    Flag("emulated-version", STRINGS, (), "kube=1.35: the version to be.", no_effect=_ONE_VERSION),
    Flag(
        "min-compatibility-version",
        STRINGS,
        (),
        "kube=1.35: the oldest version to get along with.",
        no_effect=_ONE_VERSION,
    ),
)
METRICS = (
    Flag(
        "show-hidden-metrics-for-version",
        STRING,
        "",
        "1.35: show metrics that were hidden since.",
        no_effect=_ALL_METRICS,
    ),
    Flag("disabled-metrics", STRINGS, (), "Names of metrics to leave out.", no_effect=_ALL_METRICS),
    Flag(
        "allow-metric-labels",
        PAIRS,
        {},
        "METRIC,LABEL=VALUE,VALUE: show no other values of the label.",
        no_effect=_ALL_METRICS,
    ),
    Flag(
        "allow-metric-labels-manifest",
        STRING,
        "",
        "The file that has such lists of labels.",
        no_effect=_ALL_METRICS,
    ),
)
LOGS = (
    Flag("v", LEVEL, 0, "How much to log; 5 tells about every pod and plugin.", short="v"),
    Flag(
        "vmodule",
        STRING,
        "",
        "FILE=LEVEL, separated by commas: levels for single source files.",
        no_effect="-v counts for all",
    ),
    Flag("logging-format", LOG_FORMAT, "text", "text, as klog writes it, or json."),
    Flag(
        "log-flush-frequency", DURATION, Duration(5), "The pause between two flushes.", no_effect=_ONE_STREAM
    ),
    Flag("log-text-split-stream", BOOL, False, "Errors and other lines apart.", no_effect=_ONE_STREAM),
    Flag("log-text-info-buffer-size", SIZE, "0", "How much to hold back.", no_effect=_ONE_STREAM),
    Flag("log-json-split-stream", BOOL, False, "Errors and other lines apart.", no_effect=_ONE_STREAM),
    Flag("log-json-info-buffer-size", SIZE, "0", "How much to hold back.", no_effect=_ONE_STREAM),
)
GLOBAL = (
    Flag("help", BOOL, False, "Show this and exit.", short="h"),
    Flag("version", VERSION, "false", "Show the version and exit."),
)

# Flags that kube-scheduler no longer has. Those with `instead` still count, as long as there is no --config.
OLD = (
    Flag("address", STRING, "0.0.0.0", "The address of the port without TLS.", no_effect=_NO_INSECURE_PORT),
    Flag("port", PORT, 0, "The port without TLS.", no_effect=_NO_INSECURE_PORT),
    Flag(
        "scheduler-name",
        STRING,
        "default-scheduler",
        "The name that pods give in spec.schedulerName.",
        instead="profiles[].schedulerName",
    ),
    Flag(
        "algorithm-provider",
        STRING,
        "DefaultProvider",
        "DefaultProvider, or ClusterAutoscalerProvider, which fills nodes up.",
        instead="scoringStrategy of NodeResourcesFit",
    ),
    Flag("policy-config-file", STRING, "", "The file with the Policy.", instead="profiles[].plugins"),
    Flag(
        "policy-configmap",
        STRING,
        "",
        "The ConfigMap with the Policy. It goes before --policy-config-file.",
        instead="profiles[].plugins",
    ),
    Flag(
        "policy-configmap-namespace",
        STRING,
        "kube-system",
        "The namespace of --policy-configmap.",
        instead="profiles[].plugins",
    ),
    Flag(
        "use-legacy-policy-config",
        BOOL,
        False,
        "Let --policy-config-file go before --policy-configmap.",
        instead="profiles[].plugins",
    ),
    Flag(
        "hard-pod-affinity-symmetric-weight",
        INT32,
        1,
        "The weight of the affinity that required affinity of other pods implies.",
        instead="hardPodAffinityWeight of InterPodAffinity",
    ),
    Flag(
        "lock-object-name",
        STRING,
        _ELECTION.resource_name,
        "The name of the lease.",
        instead="leaderElection.resourceName",
    ),
    Flag(
        "lock-object-namespace",
        STRING,
        _ELECTION.resource_namespace,
        "The namespace of the lease.",
        instead="leaderElection.resourceNamespace",
    ),
    Flag(
        "failure-domains",
        STRING,
        "",
        "Topology keys for preferred anti-affinity without one.",
        no_effect="every affinity term has its topologyKey",
    ),
    Flag(
        "azure-container-registry-config",
        STRING,
        "",
        "The settings of a registry.",
        no_effect="schedulers pull no images",
    ),
    Flag("add-dir-header", BOOL, False, "Directories in log lines.", no_effect="lines name files alone"),
    Flag("alsologtostderr", BOOL, False, "Log to files and standard error.", no_effect=_ONLY_STDERR),
    Flag("log-backtrace-at", STRING, ":0", "Where to log a stack.", no_effect="no stacks are logged"),
    Flag("log-dir", STRING, "", "The directory of log files.", no_effect=_ONLY_STDERR),
    Flag("log-file", STRING, "", "The log file.", no_effect=_ONLY_STDERR),
    Flag("log-file-max-size", INT, 1800, "The largest size of a log file, in MB.", no_effect=_ONLY_STDERR),
    Flag("logtostderr", BOOL, True, "Log to standard error.", no_effect=_ONLY_STDERR),
    Flag("one-output", BOOL, False, "One log file for each severity.", no_effect=_ONLY_STDERR),
    Flag("skip-headers", BOOL, False, "Lines without their beginnings.", no_effect="lines always have them"),
    Flag("skip-log-headers", BOOL, False, "Files without headers.", no_effect=_ONLY_STDERR),
    Flag("stderrthreshold", STRING, "2", "Severity from which on to log.", no_effect=_ONLY_STDERR),
    Flag(
        "experimental-logging-sanitization",
        BOOL,
        False,
        "Take out secrets.",
        no_effect="no secrets are logged",
    ),
)

# In the order in which kube-scheduler's --help has them, ours and the old ones last.
GROUPS = {
    "Misc": MISC,
    "Secure serving": SECURE_SERVING,
    "Authentication": AUTHENTICATION,
    "Authorization": AUTHORIZATION,
    "Deprecated": DEPRECATED,
    "Leader election": LEADER_ELECTION,
    "Feature gate": FEATURE_GATE,
    "Metrics": METRICS,
    "Logs": LOGS,
    "Global": GLOBAL,
    "Stowplan": STOWPLAN,
    "Old": OLD,
}
FLAGS = {flag.name: flag for group in GROUPS.values() for flag in group}


def help_text(program: str, width: int) -> str:
    """What `program --help` prints, in lines of up to `width` columns."""
    return "\n".join(_lines(program, width))


def _lines(program: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(_INTRODUCTION, width)
    yield from ("", "Usage:", f"  {program} [flags]")
    for title, flags in GROUPS.items():
        yield from ("", f"{title} flags:", "")
        if note := _NOTES.get(title):
            yield from (*textwrap.wrap(note, width, initial_indent="  ", subsequent_indent="  "), "")
        for flag in sorted(flags, key=lambda flag: flag.name):
            yield _heading(flag)
            yield from textwrap.wrap(
                _words(flag),
                width,
                initial_indent=" " * 16,
                subsequent_indent=" " * 16,
                break_on_hyphens=False,
            )


def _heading(flag: Flag) -> str:
    short = f"-{flag.short}, " if flag.short else "    "
    return f"  {short}--{flag.name} {flag.kind.name}".rstrip()


def _words(flag: Flag) -> str:
    words = flag.help
    if flag.no_effect:
        words += f" Accepted without effect: {flag.no_effect}."
    if flag.instead:
        words += f" In a --config file: {flag.instead}."
    return words + _default(flag)


def _default(flag: Flag) -> str:
    default = flag.default
    if default in ("", None, False, "false", (), {}):
        return ""
    if isinstance(default, tuple):
        return f" (default [{','.join(default)}])"
    if default is True:
        return " (default true)"
    return f' (default "{default}")' if flag.kind.name == "string" else f" (default {default})"
