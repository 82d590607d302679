#!/usr/bin/env python3
"""Checks the Kubernetes manifests and the Dockerfile without a cluster, a registry or a network.

usage: tests/deploy/deploy_test.py
FOLIO_SERVER_BIN=<path of folio-server>, or FOLIO_BIN_DIR=<its folder>, adds the checks against the binaries. Needs PyYAML. A check whose tool or file is missing is reported as skipped, with the reason.
"""

import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import image_rules  # noqa: E402
import invariants  # noqa: E402
import manifests  # noqa: E402
import prometheus_tools  # noqa: E402
from manifests import DEPLOY, OVERLAYS, ROOT  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
OLDEST_KUBERNETES = "1.30"
NEWEST_KUBERNETES = "1.37"
OPERATOR_KINDS = {"PodMonitor", "PrometheusRule"}

KUBECTL, NO_KUBECTL = manifests.find_kubectl()
needs_kubectl = unittest.skipUnless(KUBECTL, f"overlays not rendered ({NO_KUBECTL}); only the base's files are checked")


def rendered(overlay):
    return manifests.load(manifests.render(KUBECTL, f"overlays/{overlay}"))


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def server_binary(test):
    folder = os.environ.get("FOLIO_BIN_DIR")
    binary = os.environ.get("FOLIO_SERVER_BIN") or (folder and os.path.join(folder, "folio-server"))
    if not binary:
        test.skipTest("neither FOLIO_SERVER_BIN nor FOLIO_BIN_DIR is set")
    return pathlib.Path(binary).resolve(strict=True)


class ManifestTest(unittest.TestCase):
    def test_base_files_hold_the_invariants(self):
        self.assertEqual(invariants.violations(manifests.load_base_files()), [])

    @needs_kubectl
    def test_overlays_hold_the_invariants(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay):
                extra = (invariants.image_has_digest,) if overlay == "prod" else ()
                self.assertEqual(invariants.violations(rendered(overlay), extra), [])

    @needs_kubectl
    def test_each_overlay_adds_what_it_is_for(self):
        cpu, gpu, prod = (rendered(overlay) for overlay in OVERLAYS)
        self.assertNotIn("nvidia.com/gpu", cpu.container["resources"]["limits"])
        self.assertFalse([v for v in cpu.pod["volumes"] if "persistentVolumeClaim" in v])
        self.assertTrue(gpu.container["image"].endswith("-cuda"))
        for m in (gpu, prod):
            self.assertEqual(m.container["resources"]["limits"]["nvidia.com/gpu"], "1")
            self.assertTrue(OPERATOR_KINDS <= {o["kind"] for o in m.objects})
        self.assertEqual(len(prod.all("HorizontalPodAutoscaler")), 1)
        namespaces = {o["metadata"].get("namespace") for o in prod.objects if o["kind"] != "Namespace"}
        self.assertEqual(namespaces, {prod.one("Namespace")["metadata"]["name"]})

    @needs_kubectl
    def test_objects_match_the_kubernetes_schemas(self):
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("kubernetes-validate is not installed (see requirements.txt)")
        for overlay in OVERLAYS:
            for item in rendered(overlay).objects:
                if item["kind"] in OPERATOR_KINDS:
                    continue
                for version in (OLDEST_KUBERNETES, NEWEST_KUBERNETES):
                    with self.subTest(overlay, kind=item["kind"], version=version):
                        kubernetes_validate.validate(item, version, strict=True)

    @needs_kubectl
    def test_schema_check_refuses_an_unknown_field(self):
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("kubernetes-validate is not installed (see requirements.txt)")
        service = copy.deepcopy(rendered("cpu").one("Service"))
        service["spec"]["clusterIp"] = "None"
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(service, OLDEST_KUBERNETES, strict=True)

    @needs_kubectl
    def test_metrics_in_rules_exist_in_the_server(self):
        sources = [p.read_text() for p in sorted((ROOT / "server").rglob("*.cc"))]
        if not any("prometheus" in text for text in sources):
            self.skipTest("the server's sources name no metrics")
        text = "\n".join(sources)
        names = invariants.metric_names(rendered("prod"))
        self.assertGreater(len(names), 5)
        self.assertEqual([n for n in sorted(names) if n.removeprefix("folio_") not in text], [])

    def test_server_knows_the_flags(self):
        text = run(str(server_binary(self)), "--help").stdout
        known = set(re.findall(r"--[a-z][a-z0-9-]*", text))
        dockerfile = image_rules.Dockerfile((ROOT / "Dockerfile").read_text())
        used = set(re.findall(r"--[a-z][a-z0-9-]*", dockerfile.last("CMD")))
        used |= set(manifests.load_base_files().flags)
        for overlay in OVERLAYS if KUBECTL else ():
            used |= set(rendered(overlay).flags)
        self.assertEqual(sorted(used - known), [])

    def test_yaml_is_clean(self):
        yamllint = shutil.which("yamllint")
        if not yamllint:
            self.skipTest("no yamllint")
        result = run(yamllint, "--strict", "-c", str(HERE / "yamllint.yaml"), str(DEPLOY), str(HERE))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class AlertTest(unittest.TestCase):
    def test_rules_parse_and_fire(self):
        promtool = prometheus_tools.find("promtool")
        if not promtool:
            self.skipTest(f"no promtool: {prometheus_tools.WHERE_FROM}")
        rule = yaml.safe_load((DEPLOY / "components/monitoring/prometheusrule.yaml").read_text())
        with tempfile.TemporaryDirectory() as folder:
            rules = pathlib.Path(folder, "rules.yaml")
            rules.write_text(yaml.safe_dump(rule["spec"]))
            shutil.copy(HERE / "alerts_test.yaml", folder)
            for command in (("check", "rules", "rules.yaml"), ("test", "rules", "alerts_test.yaml")):
                result = run(promtool, *command, cwd=folder)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class ClientTest(unittest.TestCase):
    def test_page_and_client_library_have_one_service_config(self):
        page = re.search(r"```json\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
        code = re.search(r'kServiceConfig\[\] = R"\((.*?)\)"', (ROOT / "client/channel.cc").read_text(), re.DOTALL)
        self.assertEqual(json.loads(page.group(1)), json.loads(code.group(1)))


class ImageTest(unittest.TestCase):
    def setUp(self):
        self.dockerfile = image_rules.Dockerfile((ROOT / "Dockerfile").read_text())

    def test_dockerfile_holds_the_rules(self):
        self.assertEqual(image_rules.violations(self.dockerfile), [])

    def test_user_is_the_one_of_the_manifests(self):
        pod = manifests.load_base_files().pod["securityContext"]
        self.assertEqual(self.dockerfile.last("USER"), f"{pod['runAsUser']}:{pod['runAsGroup']}")

    def test_what_is_copied_exists_and_is_not_ignored(self):
        ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
        for source in self.dockerfile.context_sources:
            self.assertTrue((ROOT / source).exists(), f"COPY {source}: no such path")
            self.assertFalse([i for i in ignored if source.strip("./") and source.startswith(i)], f"{source} is ignored")

    def test_runtime_packages_exist_in_debian_12(self):
        packages = self.dockerfile.runtime_packages
        self.assertGreater(len(packages), 3)
        self._needs_debian_12()
        self.assertEqual(sorted(set(packages) - self._installable(packages)), [])

    def test_runtime_packages_are_what_the_binaries_link(self):
        server = server_binary(self)
        self._needs_debian_12()
        if not (shutil.which("readelf") and shutil.which("ldd")):
            self.skipTest("no readelf or ldd")
        owners = set()
        for binary in (server, server.with_name("folio")):
            if binary.exists():
                owners |= self._linked_packages(str(binary))
        installed = set(self.dockerfile.runtime_packages)
        closure = installed | self._dependencies(installed)
        self.assertEqual(sorted(owners - closure), [], "linked but not installed")
        self.assertEqual(sorted(installed - owners), [], "installed but not linked")

    def test_hadolint_is_clean(self):
        hadolint = shutil.which("hadolint")
        if not hadolint:
            self.skipTest("no hadolint (see requirements.txt)")
        result = run(hadolint, str(ROOT / "Dockerfile"))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def _needs_debian_12(self):
        release = pathlib.Path("/etc/os-release")
        if not release.exists() or "VERSION_CODENAME=bookworm" not in release.read_text():
            self.skipTest("not Debian 12: package names differ")
        if not shutil.which("apt-cache") or not self._installable(["libgrpc-dev"]):
            self.skipTest("apt has no package lists")

    @staticmethod
    def _installable(packages):
        text = run("apt-cache", "policy", *packages).stdout
        return set(re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: [^(]", text, re.MULTILINE))

    @classmethod
    def _linked_packages(cls, binary):
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", binary).stdout)
        paths = dict(re.findall(r"(\S+) => (/\S+)", run("ldd", binary).stdout))
        return {cls._owner(paths[name]) for name in needed if name in paths} - {None}

    @staticmethod
    def _owner(path):
        """The Debian package of a file; /lib is a link to /usr/lib and either may be recorded."""
        real = os.path.realpath(path)
        for candidate in (path, real, real.removeprefix("/usr")):
            found = run("dpkg", "-S", candidate).stdout
            if found:
                return found.partition(":")[0]
        return None

    @staticmethod
    def _dependencies(packages):
        options = ("--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces")
        text = run("apt-cache", "depends", *options, "--no-enhances", *sorted(packages)).stdout
        return set(re.findall(r"Depends: (\S+)", text))


class CheckerTest(unittest.TestCase):
    """Each case breaks one value and names the check that must object, and no other."""

    def assert_objects(self, check, mutate):
        broken = manifests.load_base_files()
        mutate(broken)
        found = invariants.violations(broken)
        self.assertEqual({f.partition(":")[0] for f in found}, {check}, found)

    def set_flag(self, name, value):
        def mutate(m):
            args = m.container["args"]
            args[:] = [f"{name}={value}" if a.startswith(name + "=") else a for a in args]

        return mutate

    def test_broken_values_are_found(self):
        cases = (
            ("grace_covers_drain", self.set_flag("--drain-seconds", 600)),
            ("grace_covers_drain", lambda m: m.container["lifecycle"]["preStop"]["sleep"].update(seconds=60)),
            ("rollout_outlives_one_replica", lambda m: m.deployment.update(progressDeadlineSeconds=600)),
            ("selectors_match_pods", lambda m: m.one("Service")["spec"].update(selector={"app": "other"})),
            ("selectors_match_pods", lambda m: m.one("PodDisruptionBudget")["spec"]["selector"].update(matchLabels={})),
            ("names_are_unique", lambda m: m.container["args"].append("--threads=4")),
            ("ports_exist", lambda m: m.one("Service")["spec"]["ports"][0].update(targetPort="http")),
            ("ports_exist", self.set_flag("--metrics-listen", "0.0.0.0:9091")),
            ("probes_ask_for_health", lambda m: m.container["readinessProbe"]["httpGet"].update(path="/metrics")),
            ("probes_ask_for_health", lambda m: m.container["livenessProbe"]["httpGet"].update(port="grpc")),
            ("probes_ask_for_health", lambda m: m.container.pop("livenessProbe")),
            ("probes_ask_for_health", lambda m: m.container["readinessProbe"]["httpGet"].pop("scheme")),
            ("strangers_are_kept_out", self.set_flag("--tenants", "/tmp/tenants.json")),
            ("strangers_are_kept_out", lambda m: m.container["args"].remove("--tls-key=/etc/folio/tls/tls.key")),
            ("strangers_are_kept_out", lambda m: m.container["args"].append("--insecure")),
            ("strangers_are_kept_out", lambda m: m.one("Service")["spec"]["ports"][0].pop("appProtocol")),
            ("startup_is_patient", lambda m: m.container["startupProbe"].update(failureThreshold=3)),
            ("pods_are_confined", lambda m: m.pod["securityContext"].update(runAsUser=0)),
            ("pods_are_confined", lambda m: m.container["securityContext"].update(allowPrivilegeEscalation=True)),
            ("pods_are_confined", lambda m: m.container["securityContext"].update(readOnlyRootFilesystem=False)),
            ("pods_have_no_api_access", lambda m: m.pod.pop("automountServiceAccountToken")),
            ("volumes_are_bounded", lambda m: m.container["volumeMounts"][0].update(readOnly=False)),
            ("model_is_somewhere", self.set_flag("--model", "/data/model")),
            ("resources_fit_the_flags", self.set_flag("--kv-bytes", 2**40)),
            ("resources_fit_the_flags", lambda m: m.container.pop("resources")),
            ("image_is_fixed", lambda m: m.container.update(image="registry.example:5000/folio")),
            ("image_is_fixed", lambda m: m.container.update(image="registry.example/folio:latest")),
            ("replicas_survive_disruption", lambda m: m.one("PodDisruptionBudget")["spec"].update(maxUnavailable=2)),
            ("service_reaches_each_pod", lambda m: m.one("Service")["spec"].pop("clusterIP")),
        )
        for number, (check, mutate) in enumerate(cases):
            with self.subTest(check, case=number):
                self.assert_objects(check, mutate)

    @needs_kubectl
    def test_broken_production_values_are_found(self):
        prod = rendered("prod")
        prod.deployment["replicas"] = 2
        prod.container["image"] = "registry.example/folio:0.1.0"
        prod.container["livenessProbe"]["failureThreshold"] = 20
        invariants.rules(prod)[1].pop("for")
        found = invariants.violations(prod, (invariants.image_has_digest,))
        checks = {"autoscaler_owns_the_count", "image_has_digest", "alerts_fit_the_flags", "alerts_are_complete"}
        self.assertEqual({f.partition(":")[0] for f in found}, checks, found)

    def test_broken_dockerfile_is_found(self):
        text = (ROOT / "Dockerfile").read_text()
        cases = (
            ("stages_share_the_base", "FROM ${BASE} AS runtime", "FROM ubuntu:24.04 AS runtime"),
            ("user_is_not_root", "USER 10001:10001", "USER root"),
            ("server_is_process_one", 'ENTRYPOINT ["/usr/local/bin/folio-server"]', "ENTRYPOINT folio-server"),
            ("runtime_stays_slim", "       libssl3 \\\n", "       libssl3 libgrpc++-dev \\\n"),
            ("ports_are_exposed", "EXPOSE 50051 9090", "EXPOSE 50051"),
        )
        for check, old, new in cases:
            with self.subTest(check):
                self.assertIn(old, text)
                found = image_rules.violations(image_rules.Dockerfile(text.replace(old, new)))
                self.assertEqual({f.partition(":")[0] for f in found}, {check}, found)


if __name__ == "__main__":
    unittest.main(verbosity=2)
