"""Kubeconfig files: what is read from them, and what is said about bad ones."""

from __future__ import annotations

import base64
import json
import os

import pytest
import yaml

from certificates import Authority
from stowplan.client.kubeconfig import in_cluster, load
from stowplan.errors import InputError

SERVER = "https://10.0.0.1:6443"


def kubeconfig(*, name="one", cluster=None, user=None, context=None, **others):
    """One cluster, user and context of the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": SERVER} | (cluster or {})}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name} | (context or {})}],
    } | others


def written(path, config):
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return str(path)


def encoded(text):
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("KUBE", "KUBERNETES_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("user", "headers"),
    [
        pytest.param({}, {}, id="nobody"),
        pytest.param({"token": "abc"}, {"Authorization": "Bearer abc"}, id="a token"),
        pytest.param(
            {"username": "joe", "password": "x"}, {"Authorization": "Basic am9lOng="}, id="name and password"
        ),
        pytest.param(
            {"token": "abc", "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}},
            {"Authorization": "Bearer abc"},
            id="a token rather than an exec plugin",
        ),
        pytest.param(
            {"token": "abc", "as": "ann", "as-uid": "7", "as-user-extra": {"scopes": ["view"]}},
            {
                "Authorization": "Bearer abc",
                "Impersonate-User": "ann",
                "Impersonate-Uid": "7",
                "Impersonate-Extra-scopes": "view",
            },
            id="acting as someone else",
        ),
    ],
)
async def test_who_we_are(tmp_path, user, headers):
    connection = load(written(tmp_path / "config", kubeconfig(user=user)))
    assert dict(await connection.headers()) == headers


async def test_a_token_file_counts_more_than_what_else_there_is(tmp_path):
    (tmp_path / "token").write_text("of the file")
    user = {"tokenFile": "token", "token": "abc", "username": "joe", "password": "x"}
    connection = load(written(tmp_path / "config", kubeconfig(user=user)))
    assert await connection.headers() == [("Authorization", "Bearer of the file")]


async def test_every_group_has_a_header(tmp_path):
    config = kubeconfig(user={"as": "ann", "as-groups": ["a", "b"]})
    headers = await load(written(tmp_path / "config", config)).headers()
    assert headers[1:] == [("Impersonate-Group", "a"), ("Impersonate-Group", "b")]


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        pytest.param({}, {}, (SERVER, "default", ""), id="as written"),
        pytest.param({"context": {"namespace": "x"}}, {}, (SERVER, "x", ""), id="with a namespace"),
        pytest.param(
            {}, {"master": "https://other:1/"}, ("https://other:1", "default", ""), id="another server"
        ),
        pytest.param(
            {"cluster": {"proxy-url": "http://proxy:3128"}},
            {},
            (SERVER, "default", "http://proxy:3128"),
            id="by a proxy",
        ),
        pytest.param(
            {"cluster": {"server": f"{SERVER}/k8s/a/"}},
            {},
            (f"{SERVER}/k8s/a", "default", ""),
            id="below a path",
        ),
        pytest.param(
            {"preferences": {}, "extensions": None}, {}, (SERVER, "default", ""), id="unknown and null"
        ),
    ],
)
def test_where_to(tmp_path, config, settings, expected):
    connection = load(written(tmp_path / "config", kubeconfig(**config)), **settings)
    assert (connection.server, connection.namespace, connection.proxy) == expected


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        pytest.param({"HTTPS_PROXY": "http://p:1"}, "http://p:1", id="set"),
        pytest.param({"HTTP_PROXY": "http://p:1"}, "", id="for another scheme"),
        pytest.param({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a,10.0.0.1"}, "", id="not for this host"),
        pytest.param({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "", id="not for this network"),
        pytest.param(
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.1.0.0/16, x/y"}, "http://p:1", id="for it"
        ),
    ],
)
def test_the_proxy_of_the_environment(tmp_path, monkeypatch, variables, proxy):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load(written(tmp_path / "config", kubeconfig())).proxy == proxy


async def test_several_files_are_merged_and_the_first_counts(tmp_path, monkeypatch):
    first = kubeconfig(name="one", user={"token": "first"}, cluster={"server": "https://first"})
    second = kubeconfig(name="one", user={"token": "second"}, cluster={"server": "https://second"})
    third = kubeconfig(name="two", user={"token": "third"}, cluster={"server": "https://third"})
    files = [written(tmp_path / f"{at}", config) for at, config in enumerate((first, second, third))]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "missing"), *files]))
    found, other = load(None), load(None, context="two")
    assert (found.server, dict(await found.headers())["Authorization"]) == ("https://first", "Bearer first")
    assert (other.server, dict(await other.headers())["Authorization"]) == ("https://third", "Bearer third")


def test_the_file_in_the_home_folder(tmp_path):
    (tmp_path / "home/.kube").mkdir(parents=True)
    written(tmp_path / "home/.kube/config", kubeconfig())
    assert load(None).server == SERVER


def test_only_a_master(tmp_path):
    assert load(None, master="http://127.0.0.1:8080").server == "http://127.0.0.1:8080"


async def test_files_are_relative_to_the_kubeconfig(tmp_path, monkeypatch):
    authority = Authority()
    (tmp_path / "certs").mkdir()
    authority.issue("me").write(tmp_path / "certs", "me")
    (tmp_path / "certs/ca.crt").write_text(authority.certificate)
    (tmp_path / "token").write_text("abc\n")
    user = {"client-certificate": "certs/me.crt", "client-key": "certs/me.key", "tokenFile": "token"}
    config = kubeconfig(user=user, cluster={"certificate-authority": "certs/ca.crt"})
    path = written(tmp_path / "config", config)
    monkeypatch.chdir("/")
    assert dict(await load(path).headers())["Authorization"] == "Bearer abc"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param("a: [", "is not YAML: ", id="no YAML"),
        pytest.param("just text", "is not a kubeconfig: it needs clusters, users and contexts", id="no map"),
        pytest.param({"clusters": 1}, "clusters: Expected `array`, got `int`", id="a field of another type"),
        pytest.param({}, "has no current-context; choose one of its contexts", id="empty"),
        pytest.param(
            kubeconfig(**{"current-context": "two"}),
            "has no context 'two'; there are: one",
            id="no such context",
        ),
        pytest.param(
            kubeconfig(context={"cluster": "x"}), "has no cluster 'x'; there are: one", id="no such cluster"
        ),
        pytest.param(kubeconfig(context={"user": "x"}), "has no user 'x'; there are: one", id="no such user"),
        pytest.param(kubeconfig(cluster={"server": ""}), "cluster 'one': has no server", id="no server"),
        pytest.param(
            kubeconfig(cluster={"server": "10.0.0.1"}),
            "'10.0.0.1' is not the URL of an API server; expected one like https://10.0.0.1:6443",
            id="no URL",
        ),
        pytest.param(
            kubeconfig(cluster={"proxy-url": "socks5://p"}),
            "proxy socks5://p: only http and https proxies are supported",
            id="another proxy",
        ),
        pytest.param(
            kubeconfig(cluster={"certificate-authority-data": "?"}),
            "cluster 'one': certificate-authority-data: is not base64 of PEM text",
            id="an authority that is no base64",
        ),
        pytest.param(
            kubeconfig(cluster={"certificate-authority-data": encoded("no certificate")}),
            "cluster 'one': the certificate authority is not PEM",
            id="an authority that is no certificate",
        ),
        pytest.param(
            kubeconfig(user={"client-certificate-data": encoded("x")}),
            "user 'one': has a client certificate but no client-key or client-key-data",
            id="a certificate without its key",
        ),
        pytest.param(
            kubeconfig(user={"client-certificate-data": encoded("x"), "client-key-data": encoded("y")}),
            "user 'one': its client certificate and key are not PEM, or do not belong together",
            id="no certificate",
        ),
        pytest.param(
            kubeconfig(user={"auth-provider": {"name": "gcp"}}),
            "user 'one': auth-provider is no longer supported; use the exec plugin of your provider instead",
            id="an auth-provider",
        ),
        pytest.param(
            kubeconfig(
                user={"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}
            ),
            "user 'one': exec.apiVersion: 'client.authentication.k8s.io/v1alpha1' is not a supported version",
            id="an old exec plugin",
        ),
        pytest.param(
            kubeconfig(
                user={
                    "exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Always"},
                }
            ),
            "user 'one': exec.interactiveMode: a scheduler runs without a terminal",
            id="an exec plugin that asks",
        ),
    ],
)
def test_a_bad_one_is_explained(tmp_path, config, message):
    path = written(tmp_path / "config", config)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("user", "cluster", "missing"),
    [
        pytest.param({"tokenFile": "token"}, {}, "token", id="token"),
        pytest.param({}, {"certificate-authority": "ca.crt"}, "ca.crt", id="authority"),
        pytest.param(
            {"client-certificate": "me.crt", "client-key": "me.key"}, {}, "me.crt", id="certificate"
        ),
    ],
)
def test_a_missing_file_is_named(tmp_path, user, cluster, missing):
    path = written(tmp_path / "config", kubeconfig(user=user, cluster=cluster))
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value) == f"{tmp_path / missing}: cannot be read: No such file or directory"


def test_a_kubeconfig_that_is_not_there(tmp_path):
    with pytest.raises(InputError) as caught:
        load(str(tmp_path / "none"))
    assert str(caught.value) == f"{tmp_path / 'none'}: cannot be read: No such file or directory"
    with pytest.raises(InputError, match="no kubeconfig found; name one with --kubeconfig or in KUBECONFIG"):
        load(None)


@pytest.mark.parametrize(
    ("host", "server"),
    [
        pytest.param("10.96.0.1", "https://10.96.0.1:443", id="IPv4"),
        pytest.param("fd00::1", "https://[fd00::1]:443", id="IPv6"),
    ],
)
async def test_the_account_of_a_pod(tmp_path, host, server):
    (tmp_path / "ca.crt").write_text(Authority().certificate)
    (tmp_path / "token").write_text("abc")
    (tmp_path / "namespace").write_text("kube-system")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    connection = in_cluster(environ=environ, account=tmp_path)
    assert (connection.server, connection.namespace) == (server, "kube-system")
    assert dict(await connection.headers())["Authorization"] == "Bearer abc"


def test_outside_of_a_cluster(tmp_path):
    with pytest.raises(InputError, match="not running in a pod"):
        in_cluster(environ={}, account=tmp_path)


def test_json_is_read_too(tmp_path):
    assert load(written(tmp_path / "config", json.dumps(kubeconfig()))).server == SERVER
