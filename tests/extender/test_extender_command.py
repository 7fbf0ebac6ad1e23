"""`stowplan extender config`: what it prints makes kube-scheduler, of today or of old, use the extender."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from stowplan.cli.extender import extender
from stowplan.config import load
from stowplan.framework.registry import Registry

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
ALL = ("--verb=filter", "--verb=prioritize", "--verb=preempt", "--verb=bind")
IMAGE_SCORE = "--functions=stowplan.extender.worked.image_score"


@pytest.fixture
def printed(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**V1, "profiles": [{"schedulerName": "p"}, {"schedulerName": "q"}]}))

    def run(*words, serve=("--config", str(config))):
        done = CliRunner().invoke(extender, [*serve, "config", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_stanza_of_profiles(printed):
    text = printed("--url=https://extender:8888", "--ca-file=/ca.crt", "--cert-file=/c", "--key-file=/k")
    first, second = load(yaml.safe_load(text), Registry.installed()).config.extenders
    assert (first.filter_verb, first.prioritize_verb) == ("p/filter", "p/prioritize")
    assert (first.preempt_verb, first.bind_verb) == ("p/preempt", "")
    assert second.filter_verb == "q/filter"
    assert (first.url_prefix, first.enable_https) == ("https://extender:8888", True)
    assert (first.tls_config.ca_file, first.tls_config.cert_file, first.tls_config.key_file) == (
        "/ca.crt",
        "/c",
        "/k",
    )
    assert (first.weight, first.node_cache_capable, first.http_timeout) == (1, True, 5)


def test_stanza_of_one_profile_with_all_verbs(printed, tmp_path):
    config = tmp_path / "one.yaml"
    config.write_text(yaml.safe_dump({**V1, "profiles": [{"schedulerName": "p"}]}))
    words = ("--managed-resource=example.com/gpu", "--ignored-by-scheduler", "--weight=3", "--ignorable")
    serve = ("--config", str(config), *ALL)
    text = printed("--url=http://extender:8888/", *words, "--timeout=0.5", serve=serve)
    (found,) = load(yaml.safe_load(text), Registry.installed()).config.extenders
    assert (found.bind_verb, found.weight, found.ignorable, found.http_timeout) == ("p/bind", 3, True, 0.5)
    (resource,) = found.managed_resources
    assert (resource.name, resource.ignored_by_scheduler) == ("example.com/gpu", True)


def test_the_tutorials_policy(printed):
    """Tutorial 4's entry, field by field."""
    text = printed("--url=http://localhost:30036/my_scheduler_extension", "--policy", serve=(IMAGE_SCORE,))
    policy = json.loads(text)
    (entry,) = policy["extenders"]
    assert (policy["kind"], policy["apiVersion"]) == ("Policy", "v1")
    assert entry["urlPrefix"] == "http://localhost:30036/my_scheduler_extension"
    assert entry["prioritizeVerb"] == "my_new_priorities/image_score"
    assert entry["weight"] == 1
    assert not entry.get("nodeCacheCapable", False)
    assert not entry.get("enableHttps", False)
    assert entry["httpTimeout"] == 5_000_000_000


def test_a_policy_of_https_is_spelt_as_it_was_then(printed):
    entry = json.loads(printed("--url=https://x", "--policy", serve=(IMAGE_SCORE,)))["extenders"][0]
    assert entry["enableHttps"] is True


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "nothing to serve: use --config to serve plugins, or --functions"),
        ((IMAGE_SCORE, "config", "--url=http://x/other"), "does not start with /other"),
        ((IMAGE_SCORE, IMAGE_SCORE, "config", "--url=http://x"), "is the path of image_score too"),
    ],
)
def test_what_is_refused(words, fault):
    done = CliRunner().invoke(extender, [*words])
    assert fault in str(done.exception)


def test_profiles_cannot_share_a_path(tmp_path):
    config = tmp_path / "two.yaml"
    config.write_text(yaml.safe_dump({**V1, "profiles": [{"schedulerName": "p"}, {"schedulerName": "q"}]}))
    words = ["--config", str(config), "--filter-path=/filter", "config", "--url=http://x"]
    assert "{profile} tells them apart" in str(CliRunner().invoke(extender, words).exception)
