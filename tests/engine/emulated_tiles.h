// The instructions of the matrix unit (engine/backend/cpu/kernels/amx_tiles.h) in C++, as the
// manual defines them: what would fault there aborts here.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/base/half.h"

namespace folio::test {

class EmulatedTiles {
 public:
  // Whether this thread has tiles that are not released.
  static bool configured() { return config().palette != 0; }

  static void Configure(const cpu::TileConfig& given) {
    Require(given.palette == 1 && given.start_row == 0, "palette and start row");
    for (int tile = 0; tile < 16; ++tile) {
      Require(given.rows[tile] <= (tile < kTiles ? cpu::kTileRows : 0), "rows of a tile");
      Require(given.row_bytes[tile] <= (tile < kTiles ? cpu::kTileRowBytes : 0), "bytes of a row");
      Require((given.rows[tile] == 0) == (given.row_bytes[tile] == 0), "rows without bytes");
    }
    config() = given;
    tiles() = {};
  }
  static void Release() {
    config().palette = 0;
    tiles() = {};
  }
  template <int kTile>
  static void Zero() {
    (void)Shape(kTile);
    tiles()[kTile] = {};
  }
  template <int kTile>
  static void Load(const void* from, int64_t stride) {
    const auto [rows, bytes] = Shape(kTile);
    tiles()[kTile] = {};
    for (int row = 0; row < rows; ++row) {
      std::memcpy(tiles()[kTile][row].data(), static_cast<const char*>(from) + row * stride, bytes);
    }
  }
  template <int kTile>
  static void Store(void* to, int64_t stride) {
    const auto [rows, bytes] = Shape(kTile);
    for (int row = 0; row < rows; ++row) {
      std::memcpy(static_cast<char*>(to) + row * stride, tiles()[kTile][row].data(), bytes);
    }
  }

  template <int kC, int kA, int kB>
  static void AddBf16() {
    ForOutputs<kC, kA, kB, float>([](const char* a, const char* b, int words, float c) {
      float first = 0, second = 0;
      for (int k = 0; k < words; ++k) {
        std::array<uint16_t, 2> x, w;
        std::memcpy(x.data(), a + 4 * k, 4);
        std::memcpy(w.data(), b + k * cpu::kTileRowBytes, 4);
        first = Flushed(std::fma(Bf16(x[0]), Bf16(w[0]), first));
        second = Flushed(std::fma(Bf16(x[1]), Bf16(w[1]), second));
      }
      return Flushed(c + Flushed(first + second));
    });
  }
  template <int kC, int kA, int kB>
  static void AddBytes() {
    ForOutputs<kC, kA, kB, int32_t>([](const char* a, const char* b, int words, int32_t c) {
      for (int k = 0; k < words; ++k) {
        for (int i = 0; i < 4; ++i) {
          c += static_cast<int8_t>(a[4 * k + i]) *
               static_cast<int8_t>(b[k * cpu::kTileRowBytes + i]);
        }
      }
      return c;
    });
  }

 private:
  static constexpr int kTiles = 8;
  using Tile = std::array<std::array<char, cpu::kTileRowBytes>, cpu::kTileRows>;
  struct TileShape {
    int rows;
    int bytes;
  };

  static cpu::TileConfig& config() {
    static thread_local cpu::TileConfig config{.palette = 0};
    return config;
  }
  static std::array<Tile, kTiles>& tiles() {
    static thread_local std::array<Tile, kTiles> tiles = {};
    return tiles;
  }
  static void Require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "the matrix unit would fault: %s\n", what);
    std::abort();
  }
  static TileShape Shape(int tile) {
    Require(configured(), "not configured");
    Require(config().rows[tile] > 0, "a tile without rows");
    return {config().rows[tile], config().row_bytes[tile]};
  }
  static float Flushed(float x) {
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
  }
  static float Bf16(uint16_t bits) { return Flushed(Bf16ToFloat(bits)); }

  // product(row of A, column of B, 4-byte words of the row, sum so far) for each number of C.
  template <int kC, int kA, int kB, typename Number, typename Product>
  static void ForOutputs(Product product) {
    static_assert(kC != kA && kC != kB && kA != kB);
    const auto [rows, bytes] = Shape(kC);
    Require(Shape(kA).rows == rows && Shape(kB).bytes == bytes, "the shape of C");
    Require(Shape(kA).bytes == 4 * Shape(kB).rows, "the inner dimension");
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < bytes / 4; ++column) {
        char* const at = tiles()[kC][row].data() + 4 * column;
        Number c;
        std::memcpy(&c, at, 4);
        c = product(tiles()[kA][row].data(), tiles()[kB][0].data() + 4 * column, Shape(kB).rows, c);
        std::memcpy(at, &c, 4);
      }
    }
  }
};

}  // namespace folio::test
