#pragma once

#include <google/protobuf/duration.pb.h>

#include "absl/time/time.h"

namespace folio::client {

inline google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  const int64_t seconds = absl::ToInt64Seconds(duration);
  proto.set_seconds(seconds);
  proto.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(duration - absl::Seconds(seconds))));
  return proto;
}

inline absl::Duration FromProto(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

}  // namespace folio::client
