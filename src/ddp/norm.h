// The p-norm of many numbers, of the same bits whatever computes it.
//
// Numbers come in *blocks* of kBlock. Element i of a block is in *lane* i mod kLanes; each lane
// adds its terms in order, in f64; the lanes are joined as a balanced tree, the blocks one after
// the other. Compilers may take as many lanes at a time as the machine has room for: no lane sees
// the others. Powers are made of additions, multiplications and divisions only, because those of C
// libraries differ between processors.
#pragma once

#include <cstddef>

#include "tutti/buffer.h"

namespace tutti::ddp {

class Norm {
 public:
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kBlock = 16384;

  /// p: neither 0 nor NaN; infinite: the largest magnitude, or the smallest.
  explicit Norm(double p);

  /// Of f16, bf16, f32 or f64; behind what was added before. A buffer's last block may be short.
  void add(const ConstBuffer& numbers);
  double result() const;

 private:
  enum class Kind { sum_of_magnitudes, sum_of_squares, sum_of_powers, largest, smallest };

  template <class Number>
  void add_numbers(const Number* numbers, std::size_t count);
  template <class Number>
  double block(const Number* numbers, std::size_t count) const;
  double join(double a, double b) const;

  const double p_;
  const Kind kind_;
  double total_;
};

/// x to the power p, x >= 0; within a few units in the last place times |p log2 x|.
double power(double x, double p);

}  // namespace tutti::ddp
