"""The flags of `stowplan run` as a table: kube-scheduler's, those of older releases, and our own."""

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
    "Schedule the pods of a Kubernetes cluster with plugins in Python. Compatible with kube-scheduler's "
    "flags and configuration."
)
_NOTES = {
    "Deprecated": "Ignored when --config is given, unless noted.",
    "Old": "Flags of older kube-scheduler releases, accepted with a warning. Ignored when --config is given.",
}


_CLIENT, _ELECTION = ClientConnection(), LeaderElection()
_NO_HTTP2 = "HTTP/2 is never served"
_NO_PROXY = "authenticating proxies are not supported"
_ALL_METRICS = "all metrics are served with all labels"
_ONE_STREAM = "all lines are written to standard error without buffering"
_ANY_COMPATIBILITY = "no feature of the scheduler depends on it"
_NO_INSECURE_PORT = "only HTTPS is served, at --bind-address and --secure-port"
_ONLY_STDERR = "logs are only written to standard error"

MISC = (
    Flag(
        "config",
        STRING,
        "",
        "File with a KubeSchedulerConfiguration of any version, or a legacy Policy. If given, all deprecated "
        "flags except --pod-max-in-unschedulable-pods-duration are ignored.",
    ),
    Flag(
        "write-config-to",
        STRING,
        "",
        "Write the configuration with all defaults to this file as v1 YAML, and exit.",
    ),
    Flag("master", STRING, "", "Address of the API server. Overrides the address in the kubeconfig."),
)
STOWPLAN = (
    Flag(
        "plugin-dir",
        STRINGS,
        (),
        "Folders with plugins: every subclass of Plugin in their *.py files can be used in the "
        "configuration. Changed files are reloaded at once; if one is broken, the previous plugins stay in "
        "use. Repeatable.",
    ),
    Flag(
        "groups",
        BOOL,
        False,
        "Place pod groups of scheduler-plugins (scheduling.x-k8s.io) and Volcano as one, as if every profile "
        "enabled the plugin Coscheduling. Pod groups of Kubernetes need --feature-gates instead.",
    ),
    Flag(
        "decisions-memory",
        SIZE_OR_NONE,
        "64Mi",
        "Maximum memory for recent decisions, served at /debug/decisions; 0 keeps none.",
    ),
    Flag(
        "journal",
        STRING,
        "",
        "Directory to which all decisions are written as Parquet files (default: keep them only in memory).",
    ),
    Flag("journal-size", SOME_SIZE, "1Gi", "Maximum size of the journal; the oldest files are deleted."),
    Flag("journal-age", AGE, Duration(7 * 24 * 3600), "Maximum age of journal files."),
    Flag(
        "record",
        STRING,
        "",
        "Directory in which a trace of the cluster is recorded, for `stowplan replay` (default: none).",
    ),
    Flag(
        "extender-max-response-bytes",
        SOME_SIZE,
        "32Mi",
        "Maximum size of an HTTP extender's response; a larger response is an error.",
    ),
    Flag(
        "seed",
        INT,
        None,
        "Break ties between nodes at random with this seed, to make runs reproducible (default: a random "
        "seed).",
    ),
)
SECURE_SERVING = (
    Flag("bind-address", IP, "0.0.0.0", "Address to serve HTTPS on; 0.0.0.0 or :: means all addresses."),
    Flag("secure-port", PORT, 10259, "Port to serve HTTPS on; 0 disables it."),
    Flag(
        "cert-dir",
        STRING,
        "",
        "Directory for the certificate generated at startup. Ignored with --tls-cert-file and "
        "--tls-private-key-file; if empty, the certificate is kept in memory.",
    ),
    Flag(
        "tls-cert-file",
        STRING,
        "",
        "Certificate of the HTTPS server, followed by any intermediate certificates. Without it and "
        "--tls-private-key-file, a certificate for localhost and 127.0.0.1 is generated.",
    ),
    Flag("tls-private-key-file", STRING, "", "Private key of --tls-cert-file."),
    Flag(
        "tls-sni-cert-key",
        CERTIFICATES,
        (),
        "CERTIFICATE,KEY or CERTIFICATE,KEY:NAME,NAME: files to use for these host names (SNI). Repeatable.",
    ),
    Flag(
        "tls-cipher-suites",
        STRINGS,
        (),
        "Cipher suites allowed up to TLS 1.2, by their IANA names.",
    ),
    Flag(
        "tls-min-version",
        TLS_VERSION,
        "",
        "Minimum TLS version: VersionTLS12 (default) or VersionTLS13. VersionTLS10 and VersionTLS11 are "
        "treated as VersionTLS12.",
    ),
    Flag(
        "tls-curve-preferences",
        INT32S,
        (),
        "Curves for the key exchange, by number.",
        no_effect="chosen by Python's TLS",
    ),
    Flag(
        "http2-max-streams-per-connection",
        INT,
        0,
        "Maximum number of HTTP/2 streams per connection.",
        no_effect=_NO_HTTP2,
    ),
    Flag("disable-http2-serving", BOOL, False, "Disable HTTP/2.", no_effect=_NO_HTTP2),
    Flag(
        "permit-port-sharing", BOOL, False, "Allow other processes to listen on the same port (SO_REUSEPORT)."
    ),
    Flag(
        "permit-address-sharing",
        BOOL,
        False,
        "Listen even while connections of an earlier process are closing (SO_REUSEADDR).",
    ),
)
AUTHENTICATION = (
    Flag(
        "authentication-kubeconfig",
        STRING,
        "",
        "Kubeconfig used to create tokenreviews.authentication.k8s.io (default: the pod's service account; "
        "outside of a cluster, requests with a token are anonymous).",
    ),
    Flag(
        "authentication-skip-lookup",
        BOOL,
        False,
        "Do not look up the CA of client certificates in the cluster.",
    ),
    Flag(
        "authentication-token-webhook-cache-ttl",
        DURATION,
        Duration(10),
        "How long to cache the review of a token.",
    ),
    Flag(
        "authentication-tolerate-lookup-failure",
        BOOL,
        True,
        "Start even if the CA of client certificates cannot be looked up in the cluster.",
    ),
    Flag("client-ca-file", STRING, "", "CA file used to verify client certificates."),
    Flag(
        "requestheader-client-ca-file",
        STRING,
        "",
        "CA file used to verify authenticating proxies.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-allowed-names",
        STRINGS,
        (),
        "Common names allowed in the certificates of proxies.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-username-headers",
        STRINGS,
        ("x-remote-user",),
        "Headers with the name of the user.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-uid-headers",
        STRINGS,
        (),
        "Headers with the UID of the user.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-group-headers",
        STRINGS,
        ("x-remote-group",),
        "Headers with the groups of the user.",
        no_effect=_NO_PROXY,
    ),
    Flag(
        "requestheader-extra-headers-prefix",
        STRINGS,
        ("x-remote-extra-",),
        "Prefixes of headers with further attributes of the user.",
        no_effect=_NO_PROXY,
    ),
)
AUTHORIZATION = (
    Flag(
        "authorization-kubeconfig",
        STRING,
        "",
        "Kubeconfig used to create subjectaccessreviews.authorization.k8s.io (default: the pod's service "
        "account; outside of a cluster, only --authorization-always-allow-paths are allowed).",
    ),
    Flag(
        "authorization-always-allow-paths",
        STRINGS,
        ("/healthz", "/readyz", "/livez"),
        "Paths that are served without authorization.",
    ),
    Flag(
        "authorization-webhook-cache-authorized-ttl",
        DURATION,
        Duration(10),
        "How long to cache that a request is allowed.",
    ),
    Flag(
        "authorization-webhook-cache-unauthorized-ttl",
        DURATION,
        Duration(10),
        "How long to cache that a request is denied.",
    ),
)
DEPRECATED = (
    Flag(
        "kubeconfig",
        STRING,
        "",
        "Kubeconfig of the cluster.",
        instead="clientConnection.kubeconfig",
    ),
    Flag(
        "kube-api-content-type",
        STRING,
        _CLIENT.content_type,
        "Content type of bindings and events; all other requests use JSON.",
        instead="clientConnection.contentType",
    ),
    Flag(
        "kube-api-qps",
        FLOAT,
        _CLIENT.qps,
        "Maximum sustained requests per second to the API server.",
        instead="clientConnection.qps",
    ),
    Flag(
        "kube-api-burst",
        INT32,
        _CLIENT.burst,
        "Maximum burst of requests to the API server.",
        instead="clientConnection.burst",
    ),
    Flag(
        "profiling",
        BOOL,
        True,
        "Sets enableProfiling; /debug/pprof is not served in any case.",
        instead="enableProfiling",
    ),
    Flag(
        "contention-profiling",
        BOOL,
        True,
        "Sets enableContentionProfiling; /debug/pprof is not served in any case.",
        instead="enableContentionProfiling",
    ),
    Flag(
        "pod-max-in-unschedulable-pods-duration",
        DURATION,
        Duration(300),
        "How long an unschedulable pod waits before it is attempted again without an event. Also used with "
        "--config.",
    ),
)
LEADER_ELECTION = (
    Flag(
        "leader-elect",
        BOOL,
        _ELECTION.leader_elect,
        "Schedule only while holding a lease, so that only one replica is active.",
    ),
    Flag(
        "leader-elect-lease-duration",
        DURATION,
        _ELECTION.lease_duration,
        "How long other replicas wait after the last renewal before they acquire the lease.",
    ),
    Flag(
        "leader-elect-renew-deadline",
        DURATION,
        _ELECTION.renew_deadline,
        "How long the leader tries to renew the lease before it gives up. Must be less than the lease "
        "duration.",
    ),
    Flag(
        "leader-elect-retry-period",
        DURATION,
        _ELECTION.retry_period,
        "Interval between attempts to acquire or renew the lease.",
    ),
    Flag("leader-elect-resource-lock", STRING, _ELECTION.resource_lock, "Type of lock: leases."),
    Flag("leader-elect-resource-name", STRING, _ELECTION.resource_name, "Name of the lease."),
    Flag("leader-elect-resource-namespace", STRING, _ELECTION.resource_namespace, "Namespace of the lease."),
)
FEATURE_GATE = (
    Flag(
        "feature-gates",
        SWITCHES,
        {},
        "GATE=true or GATE=false, separated by commas. The gates of pod groups, all off by default, are "
        "GenericWorkload, GangScheduling, TopologyAwareWorkloadScheduling, WorkloadAwarePreemption, "
        "WorkloadWithJob and DRAWorkloadResourceClaims. NodeDeclaredFeatures, DRAExtendedResource and "
        "NominatedNodeNameForExpectation can be disabled. All other features follow the defaults of the "
        "emulated version: other values are errors if pods would be placed differently than by "
        "kube-scheduler, and otherwise accepted with a warning.",
    ),
    Flag(
        "emulated-version",
        STRINGS,
        (),
        "kube=1.35, or just 1.35: Kubernetes version whose plugins and feature gates are the defaults, from "
        "1.33 to 1.36 (default: the version of the API server, at most 1.36).",
    ),
    Flag(
        "min-compatibility-version",
        STRINGS,
        (),
        "kube=1.35: minimum version to be compatible with.",
        no_effect=_ANY_COMPATIBILITY,
    ),
)
METRICS = (
    Flag(
        "show-hidden-metrics-for-version",
        STRING,
        "",
        "1.35: show metrics that were hidden in this version.",
        no_effect=_ALL_METRICS,
    ),
    Flag("disabled-metrics", STRINGS, (), "Metrics to disable.", no_effect=_ALL_METRICS),
    Flag(
        "allow-metric-labels",
        PAIRS,
        {},
        "METRIC,LABEL=VALUE,VALUE: allowed values of a label.",
        no_effect=_ALL_METRICS,
    ),
    Flag(
        "allow-metric-labels-manifest",
        STRING,
        "",
        "File with allowed values of labels.",
        no_effect=_ALL_METRICS,
    ),
)
LOGS = (
    Flag("v", LEVEL, 0, "Log level; 5 logs every pod and plugin.", short="v"),
    Flag(
        "vmodule",
        STRING,
        "",
        "FILE=LEVEL, separated by commas: log levels of source files.",
        no_effect="-v applies to all files",
    ),
    Flag("logging-format", LOG_FORMAT, "text", "Log format: text (klog) or json."),
    Flag("log-flush-frequency", DURATION, Duration(5), "Interval between flushes.", no_effect=_ONE_STREAM),
    Flag(
        "log-text-split-stream",
        BOOL,
        False,
        "Write errors and other lines to separate streams.",
        no_effect=_ONE_STREAM,
    ),
    Flag("log-text-info-buffer-size", SIZE, "0", "Size of the buffer for info lines.", no_effect=_ONE_STREAM),
    Flag(
        "log-json-split-stream",
        BOOL,
        False,
        "Write errors and other lines to separate streams.",
        no_effect=_ONE_STREAM,
    ),
    Flag("log-json-info-buffer-size", SIZE, "0", "Size of the buffer for info lines.", no_effect=_ONE_STREAM),
)
GLOBAL = (
    Flag("help", BOOL, False, "Show this help and exit.", short="h"),
    Flag("version", VERSION, "false", "Show the version and exit."),
)

# Flags that kube-scheduler no longer has. Those with `instead` still have an effect without --config.
OLD = (
    Flag("address", STRING, "0.0.0.0", "Address to serve without TLS.", no_effect=_NO_INSECURE_PORT),
    Flag("port", PORT, 0, "Port to serve without TLS.", no_effect=_NO_INSECURE_PORT),
    Flag(
        "scheduler-name",
        STRING,
        "default-scheduler",
        "Name of the scheduler in spec.schedulerName of pods.",
        instead="profiles[].schedulerName",
    ),
    Flag(
        "algorithm-provider",
        STRING,
        "DefaultProvider",
        "DefaultProvider, or ClusterAutoscalerProvider, which fills nodes up.",
        instead="scoringStrategy of NodeResourcesFit",
    ),
    Flag("policy-config-file", STRING, "", "File with the Policy.", instead="profiles[].plugins"),
    Flag(
        "policy-configmap",
        STRING,
        "",
        "ConfigMap with the Policy. Overrides --policy-config-file.",
        instead="profiles[].plugins",
    ),
    Flag(
        "policy-configmap-namespace",
        STRING,
        "kube-system",
        "Namespace of --policy-configmap.",
        instead="profiles[].plugins",
    ),
    Flag(
        "use-legacy-policy-config",
        BOOL,
        False,
        "Let --policy-config-file override --policy-configmap.",
        instead="profiles[].plugins",
    ),
    Flag(
        "hard-pod-affinity-symmetric-weight",
        INT32,
        1,
        "Weight of the implicit preferred affinity that required affinity of other pods implies.",
        instead="hardPodAffinityWeight of InterPodAffinity",
    ),
    Flag(
        "lock-object-name",
        STRING,
        _ELECTION.resource_name,
        "Name of the lease.",
        instead="leaderElection.resourceName",
    ),
    Flag(
        "lock-object-namespace",
        STRING,
        _ELECTION.resource_namespace,
        "Namespace of the lease.",
        instead="leaderElection.resourceNamespace",
    ),
    Flag(
        "failure-domains",
        STRING,
        "",
        "Topology keys for preferred anti-affinity without a topology key.",
        no_effect="every affinity term has its own topologyKey",
    ),
    Flag(
        "azure-container-registry-config",
        STRING,
        "",
        "Configuration of the Azure container registry.",
        no_effect="the scheduler pulls no images",
    ),
    Flag(
        "add-dir-header", BOOL, False, "Add directories to log lines.", no_effect="lines have only file names"
    ),
    Flag("alsologtostderr", BOOL, False, "Log to standard error as well as files.", no_effect=_ONLY_STDERR),
    Flag(
        "log-backtrace-at",
        STRING,
        ":0",
        "File and line at which to log a stack trace.",
        no_effect="stack traces are not logged",
    ),
    Flag("log-dir", STRING, "", "Directory for log files.", no_effect=_ONLY_STDERR),
    Flag("log-file", STRING, "", "Log file.", no_effect=_ONLY_STDERR),
    Flag("log-file-max-size", INT, 1800, "Maximum size of a log file in MB.", no_effect=_ONLY_STDERR),
    Flag("logtostderr", BOOL, True, "Log to standard error.", no_effect=_ONLY_STDERR),
    Flag(
        "one-output",
        BOOL,
        False,
        "Write each line only to the log file of its own severity.",
        no_effect=_ONLY_STDERR,
    ),
    Flag(
        "skip-headers", BOOL, False, "Omit the header of log lines.", no_effect="lines always have a header"
    ),
    Flag("skip-log-headers", BOOL, False, "Omit the header of log files.", no_effect=_ONLY_STDERR),
    Flag(
        "stderrthreshold", STRING, "2", "Minimum severity to log to standard error.", no_effect=_ONLY_STDERR
    ),
    Flag(
        "experimental-logging-sanitization",
        BOOL,
        False,
        "Remove secrets from log lines.",
        no_effect="no secrets are logged",
    ),
)

# In the order of kube-scheduler's --help, then ours, then the old ones.
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
    """The output of `program --help`, in lines of up to `width` columns."""
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
