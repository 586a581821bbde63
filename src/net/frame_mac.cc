#include "net/frame_mac.h"

#include <openssl/evp.h>

#include <utility>

#include "net/openssl.h"
#include "tutti/error.h"

namespace tutti::net {
namespace {

/// The number of the frame, and zeros.
constexpr std::size_t kNonceBytes = 12;

void require(bool succeeded) {
  if (!succeeded) throw Error(ErrorCode::kSystem, "OpenSSL cannot compute an AES-256-GMAC");
}

}  // namespace

void FrameMac::Free::operator()(evp_cipher_ctx_st* context) const noexcept {
  EVP_CIPHER_CTX_free(context);
}

FrameMac::FrameMac(const Key& key) : context_(EVP_CIPHER_CTX_new()) {
  require(context_ && EVP_EncryptInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr,
                                         in(key.bytes()), nullptr) == 1);
}

FrameMac::~FrameMac() = default;
FrameMac::FrameMac(FrameMac&& other) noexcept = default;

/// The key is never used for more than one frame of a number.
void FrameMac::begin() {
  std::array<unsigned char, kNonceBytes> nonce{};
  for (std::size_t i = 0; i < sizeof number_; ++i)
    nonce[i] = static_cast<unsigned char>(number_ >> (8 * i));
  require(EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data()) == 1);
  has_begun_ = true;
}

void FrameMac::add(std::span<const std::byte> part) {
  if (!has_begun_) begin();
  int length = 0;
  if (part.empty()) return;
  require(EVP_EncryptUpdate(context_.get(), nullptr, &length, in(part),
                            static_cast<int>(part.size())) == 1);
}

FrameTag FrameMac::finish() {
  if (!has_begun_) begin();
  FrameTag tag;
  std::array<unsigned char, kFrameTagBytes> none;
  int length = 0;
  require(EVP_EncryptFinal_ex(context_.get(), none.data(), &length) == 1 &&
          EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kFrameTagBytes, tag.data()) ==
              1);
  has_begun_ = false;
  ++number_;
  return tag;
}

}  // namespace tutti::net
