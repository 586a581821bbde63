// The product of complex numbers by the textbook formula, (a + bi)(c + di) = (ac - bd) + (ad +
// bc)i: no infinity is recovered from a NaN, so that the bits are those of two products and one sum
// each, whatever the compiler. One plain loop for all machines: nobody's training hangs on it.
#include <bit>
#include <cstddef>
#include <cstring>

#include "kernels/table.h"

namespace tutti::kernels {

namespace {

template <class T>
struct Complex {
  T re, im;
};

template <class T>
Complex<T> operator*(Complex<T> a, Complex<T> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

template <class T, int kFirst, int kCount>
Complex<T> tree(const void* const* inputs, std::size_t at) {
  if constexpr (kCount == 1) {
    Complex<T> value;  // maybe not aligned to both parts
    std::memcpy(&value, static_cast<const std::byte*>(inputs[kFirst]) + at, sizeof value);
    return value;
  } else {
    constexpr int kLower = static_cast<int>(std::bit_floor(static_cast<unsigned>(kCount - 1)));
    return tree<T, kFirst, kLower>(inputs, at) *
           tree<T, kFirst + kLower, kCount - kLower>(inputs, at);
  }
}

template <class T, int kCount>
void multiply(const Args& args) {
  for (std::size_t i = 0; i < args.count; ++i) {
    const std::size_t at = i * sizeof(Complex<T>);
    const Complex<T> product = tree<T, 0, kCount>(args.inputs, at);
    for (void* const out : {args.out, args.out2}) {
      if (out != nullptr) std::memcpy(static_cast<std::byte*>(out) + at, &product, sizeof product);
    }
  }
}

template <class T>
constexpr ByWidth kByWidth = {{nullptr, multiply<T, 1>, multiply<T, 2>, nullptr, multiply<T, 4>}};
template <class T>
constexpr Table kProduct = {kByWidth<T>, kByWidth<T>, kByWidth<T>, multiply<T, 2>, multiply<T, 1>};

}  // namespace

const Table* find_complex_product(DType dtype) noexcept {
  return dtype == DType::complex64 ? &kProduct<float> : &kProduct<double>;
}

}  // namespace tutti::kernels
