// Product codes by coordinate descent. A vector lane is a point, so that no step needs a sum across lanes and
// `lanes` points descend together. Definition: struct Encode in kernels.h.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace aniso::ANISO_ISA {
namespace {

// What one codeword of a subspace adds to the sums of the objective.
struct Part {
  F32 n;  // <codeword, v>
  F32 x;  // <codeword, u>
  F32 b;  // |codeword|^2
  I32 code;
};

// The state of `lanes` points on their way down.
struct Descent {
  F32* v;       // (d) times unit^2, or of about length unit under the best scale
  F32* u;       // (d) times unit
  Part* parts;  // (m) the codewords chosen
  F32 penalty;
  F32 pull;     // v - pull u is what is coded, in units of v
  F32 lift;     // from units of v to unit^2
  F32 n, x, b;  // sums of the parts
};

std::size_t encode_scratch(const Codebooks& books) { return sizeof(F32) * 2 * books.d + sizeof(Part) * books.m; }

void load_points(const Encode& e, std::size_t row, std::size_t count, Descent& at) {
  const std::size_t d = e.books.d;
  float* v = reinterpret_cast<float*>(at.v);
  float* u = reinterpret_cast<float*>(at.u);
  for (std::size_t l = 0; l < lanes; ++l) {
    const std::size_t i = row + (l < count ? l : 0);  // spare lanes repeat the first point
    const float* point = e.points + i * d;
    const float* residual = e.residuals + i * d;
    double squared = 0, along = 0;
    for (std::size_t j = 0; j < d; ++j) {
      squared += static_cast<double>(point[j]) * point[j];
      along += static_cast<double>(point[j]) * residual[j];
    }
    const double inverse = squared > 0 ? 1 / __builtin_sqrt(squared) : 0;  // a zero point has no direction
    const double pull = e.penalty[i] * along * inverse;
    double length = 0;
    for (std::size_t j = 0; j < d; ++j) {
      const double value = residual[j] + pull * (point[j] * inverse);
      length += value * value;
    }
    // Lengths in units of the codewords; under the best scale that of v does not matter. Powers of two round nothing.
    const double unit = e.books.unit;
    int exponent = 0;
    if (e.scaled) (void)__builtin_frexp(__builtin_sqrt(length), &exponent);
    const double v_unit = e.scaled ? __builtin_ldexp(unit, -exponent) : unit * unit;
    at.penalty[l] = e.penalty[i];
    at.pull[l] = static_cast<float>(pull * v_unit / unit);
    at.lift[l] = static_cast<float>(unit * unit / v_unit);
    for (std::size_t j = 0; j < d; ++j) {
      const double direction = point[j] * inverse;
      u[j * lanes + l] = static_cast<float>(direction * unit);
      v[j * lanes + l] = static_cast<float>((residual[j] + pull * direction) * v_unit);
    }
  }
}

// Calls see(codeword's part) for every codeword of subspace m. Width is its number of dimensions, 0 if over 4.
template <std::size_t Width, class See>
inline void each_codeword(const Codebooks& books, std::size_t m, const Descent& at, See see) {
  const std::size_t start = books.starts[m];
  const std::size_t width = Width ? Width : books.starts[m + 1] - start;
  const float* words = books.codewords + m * books.k * books.width;
  const float* squared_norms = books.squared_norms + m * books.k;
  F32 v[Width ? Width : 1], u[Width ? Width : 1];
  for (std::size_t j = 0; j < Width; ++j) {
    v[j] = at.v[start + j];
    u[j] = at.u[start + j];
  }
  for (std::size_t c = 0; c < books.k; ++c, words += books.width) {
    Part part{};
    for (std::size_t j = 0; j < width; ++j) {
      const F32 word = broadcast(words[j]);
      part.n += word * (Width ? v[j] : at.v[start + j]);
      part.x += word * (Width ? u[j] : at.u[start + j]);
    }
    part.b = broadcast(squared_norms[c]);
    part.code = broadcast(static_cast<std::int32_t>(c));
    see(part);
  }
}

inline void keep(Part& best, const Part& part, I32 better) {
  best.n = better ? part.n : best.n;
  best.x = better ? part.x : best.x;
  best.b = better ? part.b : best.b;
  best.code = better ? part.code : best.code;
}

// The codeword nearest to the residual r itself: least |c|^2 - 2 <c, r>.
template <std::size_t Width>
Part nearest(const Codebooks& books, std::size_t m, const Descent& at) {
  Part best{};
  F32 best_cost = broadcast(__builtin_inff());
  each_codeword<Width>(books, m, at, [&](const Part& part) {
    const F32 cost = part.b - 2 * at.lift * (part.n - at.pull * part.x);
    const I32 better = cost < best_cost;
    best_cost = better ? cost : best_cost;
    keep(best, part, better);
  });
  return best;
}

// The best codeword of subspace m while all others stay; returns the lanes in which it changed.
template <std::size_t Width, bool Scaled>
I32 improve(const Codebooks& books, std::size_t m, Descent& at) {
  Part best = at.parts[m];
  const I32 before = best.code;
  const F32 n_rest = at.n - best.n, x_rest = at.x - best.x, b_rest = at.b - best.b;
  const F32 penalty = at.penalty;
  if constexpr (Scaled) {
    const F32 n_now = at.n > F32{} ? at.n : F32{};
    F32 best_square = n_now * n_now;
    F32 best_d = best_square > F32{} ? at.b + penalty * at.x * at.x : broadcast(1.0f);  // anything beats nothing
    each_codeword<Width>(books, m, at, [&](const Part& part) {
      const F32 n = n_rest + part.n, x = x_rest + part.x;
      const F32 d = b_rest + part.b + penalty * x * x;
      const F32 square = (n > F32{} ? n : F32{}) * n;
      const I32 better = square * best_d > best_square * d;
      best_square = better ? square : best_square;
      best_d = better ? d : best_d;
      keep(best, part, better);
    });
  } else {
    F32 best_cost = best.b - 2 * best.n + penalty * at.x * at.x;
    each_codeword<Width>(books, m, at, [&](const Part& part) {
      const F32 x = x_rest + part.x;
      const F32 cost = part.b - 2 * part.n + penalty * x * x;
      const I32 better = cost < best_cost;
      best_cost = better ? cost : best_cost;
      keep(best, part, better);
    });
  }
  at.parts[m] = best;
  at.n = n_rest + best.n;
  at.x = x_rest + best.x;
  at.b = b_rest + best.b;
  return best.code != before;
}

// Picks the template for the width of subspace m.
template <class Call>
inline auto with_width(const Codebooks& books, std::size_t m, Call call) {
  switch (books.starts[m + 1] - books.starts[m]) {
    case 1: return call.template operator()<1>();
    case 2: return call.template operator()<2>();
    case 3: return call.template operator()<3>();
    case 4: return call.template operator()<4>();
    default: return call.template operator()<0>();
  }
}

Part part_of_codes(const Encode& e, std::size_t row, std::size_t count, std::size_t m, const Descent& at) {
  const Codebooks& books = e.books;
  Part part{};
  for (std::size_t l = 0; l < lanes; ++l) {
    const std::size_t i = row + (l < count ? l : 0);
    const std::size_t c = e.codes[i * books.m + m];
    const float* word = books.codewords + (m * books.k + c) * books.width;
    float n = 0, x = 0;
    for (std::int32_t j = books.starts[m]; j < books.starts[m + 1]; ++j) {
      n += word[j - books.starts[m]] * at.v[j][l];
      x += word[j - books.starts[m]] * at.u[j][l];
    }
    part.n[l] = n;
    part.x[l] = x;
    part.b[l] = books.squared_norms[m * books.k + c];
    part.code[l] = static_cast<std::int32_t>(c);
  }
  return part;
}

template <bool Scaled>
void descend(const Encode& e, std::size_t begin, std::size_t end, void* scratch) {
  const Codebooks& books = e.books;
  Descent at{};
  at.v = static_cast<F32*>(scratch);
  at.u = at.v + books.d;
  at.parts = reinterpret_cast<Part*>(at.u + books.d);
  for (std::size_t row = begin; row < end; row += lanes) {
    const std::size_t count = end - row < lanes ? end - row : lanes;
    load_points(e, row, count, at);
    at.n = at.x = at.b = F32{};
    for (std::size_t m = 0; m < books.m; ++m) {
      if (e.warm)
        at.parts[m] = part_of_codes(e, row, count, m, at);
      else
        at.parts[m] = with_width(books, m, [&]<std::size_t Width>() { return nearest<Width>(books, m, at); });
      at.n += at.parts[m].n;
      at.x += at.parts[m].x;
      at.b += at.parts[m].b;
    }
    for (int sweep = 0; sweep < e.sweeps; ++sweep) {
      I32 changed{};
      for (std::size_t m = 0; m < books.m; ++m)
        changed |= with_width(books, m, [&]<std::size_t Width>() { return improve<Width, Scaled>(books, m, at); });
      if (!any(changed)) break;
    }
    for (std::size_t m = 0; m < books.m; ++m)
      for (std::size_t l = 0; l < count; ++l)
        e.codes[(row + l) * books.m + m] = static_cast<std::uint8_t>(at.parts[m].code[l]);
  }
}

void encode(const Encode& e, std::size_t begin, std::size_t end, void* scratch) {
  e.scaled ? descend<true>(e, begin, end, scratch) : descend<false>(e, begin, end, scratch);
}

}  // namespace
}  // namespace aniso::ANISO_ISA
