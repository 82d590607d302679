#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/test_server.h"

namespace folio::testing {

using Metadata = std::vector<std::pair<std::string, std::string>>;
inline Metadata Bearer(const std::string& token) { return {{"authorization", "Bearer " + token}}; }

// Calls with metadata.
class TenantClient {
 public:
  TenantClient(std::shared_ptr<grpc::Channel> channel, Metadata metadata)
      : channel_(std::move(channel)), metadata_(std::move(metadata)) {}

  grpc::Status Info(v1::ServerInfo* info) {
    return Unary([&](grpc::ClientContext* context) {
      return v1::Control::NewStub(channel_)->GetServerInfo(context, {}, info);
    });
  }
  grpc::Status Get(const std::string& id, v1::Document* document) {
    return Unary([&](grpc::ClientContext* context) {
      v1::GetDocumentRequest request;
      request.set_document_id(id);
      return documents()->GetDocument(context, request, document);
    });
  }
  grpc::Status Delete(const std::string& id) {
    return Unary([&](grpc::ClientContext* context) {
      v1::DeleteDocumentRequest request;
      request.set_document_id(id);
      v1::DeleteDocumentResponse response;
      return documents()->DeleteDocument(context, request, &response);
    });
  }
  grpc::Status Save(const std::string& id) {
    return Unary([&](grpc::ClientContext* context) {
      v1::SaveDocumentRequest request;
      request.set_document_id(id);
      v1::Document response;
      return documents()->SaveDocument(context, request, &response);
    });
  }
  grpc::Status Update(const std::string& id) {
    return Unary([&](grpc::ClientContext* context) {
      v1::UpdateDocumentRequest request;
      request.set_document_id(id);
      v1::Document response;
      return documents()->UpdateDocument(context, request, &response);
    });
  }
  grpc::Status Watch(const std::string& id) {
    return Unary([&](grpc::ClientContext* context) {
      v1::WatchDocumentRequest request;
      request.set_document_id(id);
      const auto reader = documents()->WatchDocument(context, request);
      v1::Document document;
      while (reader->Read(&document)) {
      }
      return reader->Finish();
    });
  }
  grpc::Status Ask(const std::string& id) {
    return Unary([&](grpc::ClientContext* context) {
      const auto reader =
          v1::Inference::NewStub(channel_)->Generate(context, AskDocument(id, "who?"));
      v1::GenerateEvent event;
      while (reader->Read(&event)) {
      }
      return reader->Finish();
    });
  }
  grpc::Status AskMany(const std::string& id) {
    return Unary([&](grpc::ClientContext* context) {
      v1::AskManyRequest request;
      request.mutable_shared()->mutable_document()->set_document_id(id);
      request.add_questions()->set_text("who?");
      const auto reader = v1::Inference::NewStub(channel_)->AskMany(context, request);
      v1::AskManyEvent event;
      while (reader->Read(&event)) {
      }
      return reader->Finish();
    });
  }
  grpc::Status Estimate(const std::string& id) {
    return Unary([&](grpc::ClientContext* context) {
      v1::EstimateRequest request;
      *request.mutable_request() = AskDocument(id, "who?");
      v1::EstimateResponse response;
      return v1::Inference::NewStub(channel_)->Estimate(context, request, &response);
    });
  }
  grpc::Status List(const v1::ListDocumentsRequest& request, v1::ListDocumentsResponse* response) {
    return Unary([&](grpc::ClientContext* context) {
      return documents()->ListDocuments(context, request, response);
    });
  }
  std::vector<std::string> Ids(v1::ListDocumentsRequest request = {}) {
    std::vector<std::string> ids;
    do {
      v1::ListDocumentsResponse response;
      EXPECT_TRUE(List(request, &response).ok());
      for (const v1::Document& one : response.documents()) {
        ids.push_back(one.tenant().empty() ? one.document_id()
                                           : absl::StrCat(one.tenant(), ":", one.document_id()));
      }
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    return ids;
  }
  // Uploads a whole document, and returns the status of the call.
  grpc::Status Upload(const std::string& id, const std::string& text) {
    return Unary([&](grpc::ClientContext* context) {
      const auto stream = documents()->UploadDocument(context);
      v1::UploadDocumentRequest request;
      request.mutable_header()->set_document_id(id);
      stream->Write(request);
      request.mutable_chunk()->set_data(text);
      stream->Write(request);
      request.mutable_finish();
      stream->Write(request);
      stream->WritesDone();
      v1::UploadDocumentEvent event;
      while (stream->Read(&event)) {
        if (event.has_created()) {
          EXPECT_EQ(event.created().document_id(), id);
        }
        if (event.has_ready()) {
          EXPECT_EQ(event.ready().document_id(), id);
        }
      }
      return stream->Finish();
    });
  }
  std::unique_ptr<v1::Documents::Stub> documents() { return v1::Documents::NewStub(channel_); }

 private:
  grpc::Status Unary(const std::function<grpc::Status(grpc::ClientContext*)>& call) {
    grpc::ClientContext context;
    for (const auto& [key, value] : metadata_) context.AddMetadata(key, value);
    return call(&context);
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const Metadata metadata_;
};

}  // namespace folio::testing
