#!/usr/bin/env python3
"""Checks deploy/envoy without Envoy: names of fields, the bounds of a public edge, and that they fit the server's.

usage: tests/deploy/envoy_test.py
Names of fields are checked against Envoy's own protocol buffers where the package xds-protos is installed.
"""

import copy
import importlib
import importlib.util
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import manifests  # noqa: E402
from manifests import DEPLOY, ROOT  # noqa: E402

CONFIG = DEPLOY / "envoy/envoy.yaml"
TYPE_URL = re.compile(r"type\.googleapis\.com/(envoy\.\S+)\.\w+$")
KUBECTL, NO_KUBECTL = manifests.find_kubectl()
# 5.2 or later, which asks objects for their pairs.
LUA = next((path for name in ("lua5.4", "lua5.3", "lua5.2") if (path := shutil.which(name))), None)


def typed_configs(node):
    """Each message of an extension in a configuration."""
    if isinstance(node, dict):
        if "@type" in node:
            yield node
        for value in node.values():
            yield from typed_configs(value)
    elif isinstance(node, list):
        for value in node:
            yield from typed_configs(value)


def extension(config, name):
    found = [m for m in typed_configs(config) if m["@type"].endswith(f".{name}")]
    if len(found) != 1:
        raise LookupError(f"{len(found)} messages {name}, 1 expected")
    return found[0]


def seconds(text):
    return float(text.removesuffix("s"))


def number_in(path, pattern):
    """A constant of the server."""
    return int(re.search(pattern, (ROOT / path).read_text()).group(1))


NEEDS_XDS = unittest.skipUnless(importlib.util.find_spec("envoy"), "xds-protos is not installed (see requirements.txt)")


def parse_bootstrap(config):
    """Reads the configuration as Envoy does. Raises ParseError at a field that does not exist."""
    from envoy.config.bootstrap.v3 import bootstrap_pb2
    from google.protobuf import json_format
    for message in typed_configs(config):
        package = TYPE_URL.match(message["@type"]).group(1)
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")
    return json_format.ParseDict(config, bootstrap_pb2.Bootstrap())


class EnvoyTest(unittest.TestCase):
    def setUp(self):
        self.config = yaml.safe_load(CONFIG.read_text())
        self.listener = self.config["static_resources"]["listeners"][0]
        self.cluster = self.config["static_resources"]["clusters"][0]
        self.http = extension(self.config, "HttpConnectionManager")
        self.routes = self.http["route_config"]["virtual_hosts"][0]["routes"]
        self.route = self.routes[-1]["route"]

    @NEEDS_XDS
    def test_each_field_exists(self):
        self.assertGreater(parse_bootstrap(self.config).ByteSize(), 0)

    @NEEDS_XDS
    def test_a_field_that_does_not_exist_is_found(self):
        broken = copy.deepcopy(self.config)
        extension(broken, "HttpConnectionManager")["max_request_header_kb"] = 8
        with self.assertRaisesRegex(Exception, "max_request_header_kb"):
            parse_bootstrap(broken)

    def test_a_stranger_is_bounded(self):
        http2, common = self.http["http2_protocol_options"], self.http["common_http_protocol_options"]
        for name in ("max_concurrent_streams", "initial_stream_window_size", "initial_connection_window_size",
                     "max_outbound_frames", "max_outbound_control_frames", "max_inbound_priority_frames_per_stream",
                     "max_consecutive_inbound_frames_with_empty_payload",
                     "max_inbound_window_update_frames_per_data_frame_sent"):
            self.assertGreater(http2[name], 0, name)
        self.assertEqual(common["headers_with_underscores_action"], "REJECT_REQUEST")
        self.assertLessEqual(common["max_headers_count"], 100)
        self.assertLessEqual(self.http["max_request_headers_kb"], 8)
        self.assertGreater(seconds(self.http["request_headers_timeout"]), 0)
        self.assertLessEqual(self.listener["per_connection_buffer_limit_bytes"], 2**20)
        self.assertLessEqual(self.cluster["per_connection_buffer_limit_bytes"], 2**20)

    def test_the_listener_speaks_http2_over_tls_only(self):
        tls = extension(self.config, "DownstreamTlsContext")["common_tls_context"]
        self.assertEqual(tls["alpn_protocols"], ["h2"])
        self.assertIn(tls["tls_params"]["tls_minimum_protocol_version"], ("TLSv1_2", "TLSv1_3"))
        self.assertEqual(self.http["codec_type"], "HTTP2")
        self.assertEqual([f["name"].rpartition(".")[2] for f in self.listener["filter_chains"][0]["filters"]],
                         ["connection_limit", "http_connection_manager"])
        self.assertEqual(self.config["admin"]["address"]["socket_address"]["address"], "127.0.0.1")

    def test_the_servers_are_known_by_their_certificate(self):
        tls = extension(self.config, "UpstreamTlsContext")
        names = tls["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
        service = manifests.load_base_files().one("Service")["metadata"]["name"]
        self.assertEqual((tls["sni"], names), (service, [{"san_type": "DNS", "matcher": {"exact": service}}]))
        self.assertIn("--tls-cert", manifests.load_base_files().flags)

    @unittest.skipUnless(LUA, "lua is not installed")
    def test_binary_metadata_does_not_reach_the_server(self):
        filters = [f["name"].rpartition(".")[2] for f in self.http["http_filters"]]
        self.assertEqual(filters, ["lua", "router"])
        source = extension(self.config, "Lua")["default_source_code"]["inline_string"]
        headers = """
            local all = {["x-bin"] = "!!!", ["grpc-trace-bin"] = "a", ["x-binary"] = "b", ["x-document-id"] = "c"}
            local headers = setmetatable({}, {
              __index = {remove = function(_, name) all[name] = nil end},
              __pairs = function() return next, all end})
            envoy_on_request({headers = function() return headers end})
            for name in pairs(all) do print(name) end"""
        left = subprocess.run([LUA, "-"], input=source + headers, capture_output=True, text=True, check=True).stdout
        self.assertEqual(sorted(left.split()), ["x-binary", "x-document-id"])

    def test_long_streams_are_not_cut(self):
        self.assertEqual(seconds(self.route["timeout"]), 0)
        self.assertEqual(seconds(self.http["request_timeout"]), 0)
        heartbeat_ms = number_in("server/request_mapping.cc", r"kMaxHeartbeatMs = (\d+)")
        self.assertGreater(seconds(self.http["stream_idle_timeout"]), 2 * heartbeat_ms / 1000)

    def test_calls_of_operators_stay_inside(self):
        refused = [route["match"]["safe_regex"]["regex"] for route in self.routes if "direct_response" in route]
        control = (ROOT / "proto/folio/v1/control.proto").read_text()
        methods = [f"/folio.v1.Control/{name}" for name in re.findall(r"^  rpc (\w+)\(", control, re.M)]
        blocked = {method for method in methods if any(re.fullmatch(regex, method) for regex in refused)}
        self.assertEqual(blocked, {"/folio.v1.Control/ListRequests", "/folio.v1.Control/CancelRequest"})

    def test_documents_are_routed_by_the_metadata_that_clients_send(self):
        self.assertEqual(self.cluster["lb_policy"], "RING_HASH")
        name = self.route["hash_policy"][0]["header"]["header_name"]
        self.assertIn(f'AddMetadata("{name}"', (ROOT / "client/document_id.cc").read_text())

    def test_a_replica_that_drains_gets_no_call(self):
        self.assertEqual(self.cluster["health_checks"][0]["grpc_health_check"]["service_name"], "readiness")
        self.assertEqual(self.cluster["common_lb_config"]["healthy_panic_threshold"]["value"], 0)
        self.assertIn("unavailable", self.route["retry_policy"]["retry_on"].split(","))
        self.assertIn("retry_budget", self.cluster["circuit_breakers"]["thresholds"][0])

    def test_upstream_streams_are_what_the_server_allows(self):
        streams = number_in("server/limits.h", r"max_open_streams = (\d+)") // 2
        upstream = extension(self.config, "HttpProtocolOptions")["explicit_http_config"]["http2_protocol_options"]
        self.assertEqual(upstream["max_concurrent_streams"], streams)

    def test_connections_are_bounded_together(self):
        limit = extension(self.config, "ConnectionLimit")["max_connections"]
        together = extension(self.config, "DownstreamConnectionsConfig")["max_active_downstream_connections"]
        self.assertLessEqual(limit, together)

    @unittest.skipUnless(KUBECTL, f"not rendered ({NO_KUBECTL})")
    def test_manifests_run_this_configuration(self):
        m = manifests.load(manifests.render(KUBECTL, "envoy"))
        config = m.one("ConfigMap")
        self.assertEqual(yaml.safe_load(config["data"]["envoy.yaml"]), self.config)
        volumes = {v["name"]: v for v in m.pod["volumes"]}
        self.assertEqual(volumes["config"]["configMap"]["name"], config["metadata"]["name"])
        folders = {v["name"]: v["mountPath"] for v in m.container["volumeMounts"]}
        self.assertIn(f"{folders['config']}/envoy.yaml", m.container["args"])
        for certificate in extension(self.config, "DownstreamTlsContext")["common_tls_context"]["tls_certificates"]:
            for key in certificate.values():
                self.assertEqual(str(pathlib.Path(key["filename"]).parent), folders["tls"])
        validation = extension(self.config, "UpstreamTlsContext")["common_tls_context"]["validation_context"]
        root = pathlib.Path(validation["trusted_ca"]["filename"])
        self.assertEqual(str(root.parent), folders["servers"])
        self.assertEqual([item["path"] for item in volumes["servers"]["secret"]["items"]], [root.name], "and no key")
        port = self.listener["address"]["socket_address"]["port_value"]
        self.assertEqual(m.container["ports"], [{"name": "grpcs", "containerPort": port}])
        for selector in (m.deployment["selector"]["matchLabels"], m.one("Service")["spec"]["selector"],
                         m.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
                         m.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]):
            self.assertLessEqual(selector.items(), m.pod_labels.items())
        heap = extension(self.config, "FixedHeapConfig")["max_heap_size_bytes"]
        self.assertLess(heap, manifests.quantity_bytes(m.container["resources"]["limits"]["memory"]))
        self.assertFalse(m.pod["automountServiceAccountToken"])
        self.assertTrue(m.container["securityContext"]["readOnlyRootFilesystem"])

    @unittest.skipUnless(KUBECTL, f"not rendered ({NO_KUBECTL})")
    def test_egress_reaches_the_servers(self):
        policy = manifests.load(manifests.render(KUBECTL, "envoy")).one("NetworkPolicy")["spec"]["egress"][0]
        servers = manifests.load_base_files()
        self.assertLessEqual(policy["to"][0]["podSelector"]["matchLabels"].items(), servers.pod_labels.items())
        address = self.cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        service = servers.one("Service")
        self.assertEqual(address["socket_address"],
                         {"address": service["metadata"]["name"], "port_value": service["spec"]["ports"][0]["port"]})


if __name__ == "__main__":
    unittest.main(verbosity=2)
