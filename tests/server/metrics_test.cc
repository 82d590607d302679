#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

TEST(Metrics, AQuestionAboutADocumentIsCounted) {
  TestServer server(WithMetrics());
  UploadWhole(&server, "book", "abc");
  Generate call(server.channel(), AskDocument("book", "why"));
  server.engine().WaitForRequest();
  call.Next();
  server.clock().Advance(std::chrono::milliseconds(30));
  server.engine().Emit(PrefillEvent{9, 5, 9});
  call.Next();
  server.engine().Emit(Delta("a"));
  call.Next();
  server.clock().Advance(std::chrono::milliseconds(5));
  server.engine().Emit(Delta("b"));
  call.Next();
  CompletedEvent completed = Completed(2);
  completed.usage.prompt_tokens = 9;
  completed.timings.decode_seconds = 0.02;
  completed.timings.queue_seconds = 0.03;
  completed.scheduling.turn_seconds = 0.02;
  completed.scheduling.memory_seconds = 0.01;
  server.engine().Emit(completed);
  EXPECT_TRUE(call.Finish().ok());
  server.runner().Drain([] { return false; });
  EXPECT_EQ(server.Metric("folio_strategy_selected_total{strategy=\"full\"}"), 1);
  EXPECT_EQ(server.Metric("folio_generation_tokens_total{strategy=\"full\"}"), 2);
  const std::string first = "folio_time_to_first_token_seconds";
  EXPECT_EQ(server.Metric(first + "_count{document=\"hit\",strategy=\"full\"}"), 1);
  EXPECT_EQ(server.Metric(first + "_count{document=\"none\",strategy=\"full\"}"), 0);
  EXPECT_EQ(server.Metric(first + "_bucket{document=\"hit\",strategy=\"full\",le=\"0.02\"}"), 0);
  EXPECT_EQ(server.Metric(first + "_bucket{document=\"hit\",strategy=\"full\",le=\"0.04\"}"), 1);
  const std::string between = "folio_inter_token_latency_seconds";
  EXPECT_EQ(server.Metric(between + "_bucket{strategy=\"full\",le=\"0.004\"}"), 0);
  EXPECT_EQ(server.Metric(between + "_bucket{strategy=\"full\",le=\"0.006\"}"), 1);
  EXPECT_EQ(server.Metric("folio_request_success_total{finished_reason=\"length\"}"), 1);
  EXPECT_EQ(server.Metric("folio_request_prompt_tokens_sum"), 9);
  EXPECT_EQ(server.Metric("folio_request_generation_tokens_sum"), 2);
  EXPECT_DOUBLE_EQ(server.Metric("folio_request_time_per_output_token_seconds_sum"), 0.02);
  EXPECT_EQ(server.Metric("folio_e2e_request_latency_seconds_count"), 1);
  EXPECT_EQ(server.Metric("folio_request_wait_seconds_total{reason=\"turn\"}"), 0.02);
  EXPECT_EQ(server.Metric("folio_request_wait_seconds_total{reason=\"memory\"}"), 0.01);
  EXPECT_EQ(server.Metric("folio_request_wait_seconds_total{reason=\"document\"}"), 0);
  EXPECT_EQ(server.Metric("folio_request_scheduling_delay_seconds_bucket{le=\"0.01\"}"), 0);
  EXPECT_EQ(server.Metric("folio_request_scheduling_delay_seconds_bucket{le=\"0.02\"}"), 1);
  EXPECT_EQ(server.Metric("folio_request_queue_time_seconds_bucket{le=\"0.02\"}"), 0);
  EXPECT_EQ(server.Metric("folio_request_queue_time_seconds_bucket{le=\"0.04\"}"), 1);
  EXPECT_EQ(server.Metric("folio_request_prefill_time_seconds_count"), 1);
  EXPECT_EQ(server.Metric("folio_request_decode_time_seconds_count"), 1);
  EXPECT_EQ(server.Metric("folio_document_ingest_seconds_count"), 1);
  const std::string handled = "folio_grpc_server_handled_total";
  EXPECT_EQ(server.Metric(handled + "{grpc_code=\"OK\",grpc_method=\"Generate\"}"), 1);
  EXPECT_EQ(server.Metric(handled + "{grpc_code=\"OK\",grpc_method=\"UploadDocument\"}"), 1);
}

TEST(Metrics, GaugesAreReadFromTheEngine) {
  TestServer server(WithMetrics());
  EngineStats stats;
  stats.running = 2;
  stats.waiting = 3;
  stats.waiting_prefill_tokens = 400;
  stats.kv_used_bytes = 300;
  stats.kv_reserved_bytes = 500;
  stats.kv_capacity_bytes = 1000;
  stats.summary_used_bytes = 50;
  stats.steps = 12;
  stats.prefill_tokens = 77;
  stats.decode_tokens = 55;
  stats.cached_tokens = 33;
  stats.last_step_unix_seconds = 1700000000;
  stats.busy = true;
  stats.waiting_for_memory = 1;
  server.engine().set_stats(stats);
  UploadWhole(&server, "book", "abc");
  EXPECT_EQ(server.Metric("folio_num_requests_running"), 2);
  EXPECT_EQ(server.Metric("folio_num_requests_waiting"), 3);
  EXPECT_EQ(server.Metric("folio_waiting_requests{reason=\"turn\"}"), 2);
  EXPECT_EQ(server.Metric("folio_waiting_requests{reason=\"memory\"}"), 1);
  EXPECT_EQ(server.Metric("folio_waiting_requests{reason=\"document\"}"), 0);
  EXPECT_EQ(server.Metric("folio_waiting_prefill_tokens"), 400);
  EXPECT_EQ(server.Metric("folio_kv_cache_usage_ratio{tier=\"device\"}"), 0.5);
  EXPECT_EQ(server.Metric("folio_kv_cache_bytes{tier=\"device\",state=\"used\"}"), 350);
  EXPECT_EQ(server.Metric("folio_kv_cache_capacity_bytes{tier=\"device\"}"), 1000);
  EXPECT_EQ(server.Metric("folio_memory_bytes{component=\"weights\"}"), 1000);
  EXPECT_GT(server.Metric("folio_process_resident_memory_bytes"), 1e6);
  EXPECT_EQ(server.Metric("folio_prompt_tokens_total{source=\"computed\"}"), 77);
  EXPECT_EQ(server.Metric("folio_prompt_tokens_total{source=\"cached\"}"), 33);
  EXPECT_EQ(server.Metric("folio_tokens_per_second{phase=\"decode\"}"), 0);
  EXPECT_EQ(server.Metric("folio_documents{state=\"ready\"}"), 1);
  EXPECT_EQ(server.Metric("folio_documents{state=\"failed\"}"), 0);
  EXPECT_EQ(server.Metric("folio_engine_steps_total"), 12);
  EXPECT_EQ(server.Metric("folio_engine_step_tokens_total{kind=\"prefill\"}"), 77);
  EXPECT_EQ(server.Metric("folio_engine_step_tokens_total{kind=\"decode\"}"), 55);
  EXPECT_EQ(server.Metric("folio_engine_last_step_timestamp_seconds"), 1700000000);
  EXPECT_EQ(server.Metric("folio_engine_busy"), 1);
  EXPECT_EQ(server.Metric("folio_build_info{version=\"" FOLIO_VERSION "\"}"), 1);
  EXPECT_NE(server.Metrics().find("folio_model_info{"), std::string::npos);
  EXPECT_GE(server.Metric("folio_startup_seconds{phase=\"load_model\"}"), 0);
}

TEST(Metrics, FaultsOfTheServerAreCountedFromZero) {
  TestServer server(WithMetrics());
  EXPECT_EQ(server.Metric("folio_server_faults_total{grpc_code=\"INTERNAL\"}"), 0);
  for (const absl::Status& status : {absl::InternalError("ours"), absl::AbortedError("not ours")}) {
    server.engine().RefuseSubmit(status);
    Generate(server.channel(), Ask("hello")).Finish();
  }
  server.runner().Drain([] { return false; });  // a call is counted after its client has the status
  EXPECT_EQ(server.Metric("folio_server_faults_total{grpc_code=\"INTERNAL\"}"), 1);
  EXPECT_EQ(server.Metric("folio_server_faults_total{grpc_code=\"UNKNOWN\"}"), 0);
}

TEST(Metrics, RefusalsAreCountedByReasonFromZero) {
  TestServer server(WithMetrics(), TestServer::Model::kNotLoaded);
  EXPECT_EQ(server.Metric("folio_requests_rejected_total{reason=\"loading\"}"), 0);
  Generate(server.channel(), Ask("hello")).Finish();
  EXPECT_EQ(server.Metric("folio_requests_rejected_total{reason=\"loading\"}"), 1);
  server.Load();
  server.engine().RefuseSubmit(absl::ResourceExhaustedError("full"));
  Generate(server.channel(), Ask("hello")).Finish();
  EXPECT_EQ(server.Metric("folio_requests_rejected_total{reason=\"queue\"}"), 1);
  server.engine().StopAdmission();
  Generate(server.channel(), Ask("hello")).Finish();
  EXPECT_EQ(server.Metric("folio_requests_rejected_total{reason=\"draining\"}"), 1);
  Generate(server.channel(), Ask("")).Finish();  // the client's fault: not a refusal
  EXPECT_EQ(server.Metric("folio_requests_rejected_total{reason=\"capacity\"}"), 0);
}

}  // namespace
}  // namespace folio::testing
