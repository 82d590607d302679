#include "engine/model/head_order.h"

#include <cstring>
#include <utility>

namespace folio {
namespace {

OwnedTensor Allocate(const TensorView& like, int64_t rows, int64_t columns) {
  TensorView shape = like;
  shape.shape[0] = rows;
  if (like.rank > 1) shape.shape[1] = columns;
  return OwnedTensor::Like(shape);
}

}  // namespace

std::vector<int> HeadOrder(int head_dim, int rotary_dim, DecoderStyle::RotaryPairs pairs) {
  const bool interleaved = pairs == DecoderStyle::RotaryPairs::kInterleaved;
  if (rotary_dim == 0 || (rotary_dim == head_dim && !interleaved)) return {};
  const int half = head_dim / 2;
  const int turned = rotary_dim / 2;
  const int rest = (head_dim - rotary_dim) / 2;
  std::vector<int> order(head_dim);
  for (int m = 0; m < turned; ++m) {
    order[m] = interleaved ? 2 * m : m;
    order[half + m] = interleaved ? 2 * m + 1 : m + turned;
  }
  for (int m = 0; m < rest; ++m) {
    order[turned + m] = rotary_dim + m;
    order[half + turned + m] = rotary_dim + rest + m;
  }
  return order;
}

std::vector<int64_t> QkvRows(const ModelShape& shape, const DecoderStyle& style,
                             const std::vector<int>& order, int which) {
  using Layout = DecoderStyle::QkvLayout;
  const int64_t d = shape.head_dim;
  const int64_t num_heads = which == 0 ? shape.num_heads : shape.num_kv_heads;
  const int64_t heads_before[] = {0, shape.num_heads, shape.num_heads + shape.num_kv_heads};
  std::vector<int64_t> rows;
  for (int64_t head = 0; head < num_heads; ++head) {
    int64_t first = head * d;
    if (style.qkv_layout == Layout::kPerHead) first = (3 * head + which) * d;
    if (style.qkv_layout == Layout::kStacked) first += heads_before[which] * d;
    for (int64_t e = 0; e < d; ++e) rows.push_back(first + (order.empty() ? e : order[e]));
  }
  return rows;
}

OwnedTensor TakeRows(const TensorView& tensor, const std::vector<int64_t>& rows) {
  const int64_t columns = tensor.rank > 1 ? tensor.shape[1] : 1;
  OwnedTensor out = Allocate(tensor, static_cast<int64_t>(rows.size()), columns);
  const int64_t bytes = columns * DTypeBytes(tensor.dtype);
  const auto* from = static_cast<const std::byte*>(tensor.data);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(out.data.get() + i * bytes, from + rows[i] * bytes, bytes);
  }
  if (tensor.scales == nullptr) return out;
  const int64_t groups = (columns + tensor.scale_group - 1) / tensor.scale_group;
  std::vector<float> scales;
  for (const int64_t row : rows) {
    scales.insert(scales.end(), tensor.scales + row * groups, tensor.scales + (row + 1) * groups);
  }
  out.SetScales(std::move(scales), tensor.scale_group);
  return out;
}

OwnedTensor TakeColumns(const TensorView& tensor, const std::vector<int64_t>& columns) {
  OwnedTensor out = Allocate(tensor, tensor.shape[0], static_cast<int64_t>(columns.size()));
  const int64_t size = DTypeBytes(tensor.dtype);
  const auto* from = static_cast<const std::byte*>(tensor.data);
  std::byte* to = out.data.get();
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    for (const int64_t column : columns) {
      std::memcpy(to, from + (row * tensor.shape[1] + column) * size, size);
      to += size;
    }
  }
  return out;
}

}  // namespace folio
