// The plugin's declarations of NCCL, compared with NCCL's header; built where there is one.
#include <gtest/gtest.h>

#include <type_traits>

#include "plugins/nccl/api.h"

namespace ours = tutti::nccl_backend;

namespace {
// What is a macro there.
constexpr std::size_t kOurIdBytes = ours::NCCL_UNIQUE_ID_BYTES;
constexpr int kOurVersions[] = {ours::NCCL_VERSION(2, 8, 4), ours::NCCL_VERSION(2, 14, 3),
                                ours::NCCL_VERSION(2, 28, 9)};
}  // namespace

#include <nccl.h>

namespace {

// Values.
#define TUTTI_SAME(name) \
  static_assert(static_cast<int>(ours::name) == static_cast<int>(::name), #name)
TUTTI_SAME(ncclSuccess);
TUTTI_SAME(ncclUnhandledCudaError);
TUTTI_SAME(ncclSystemError);
TUTTI_SAME(ncclInternalError);
TUTTI_SAME(ncclInvalidArgument);
TUTTI_SAME(ncclInvalidUsage);
TUTTI_SAME(ncclRemoteError);
TUTTI_SAME(ncclInProgress);
TUTTI_SAME(ncclSum);
TUTTI_SAME(ncclProd);
TUTTI_SAME(ncclMax);
TUTTI_SAME(ncclMin);
TUTTI_SAME(ncclAvg);
TUTTI_SAME(ncclMaxRedOp);
TUTTI_SAME(ncclInt8);
TUTTI_SAME(ncclUint8);
TUTTI_SAME(ncclInt32);
TUTTI_SAME(ncclUint32);
TUTTI_SAME(ncclInt64);
TUTTI_SAME(ncclUint64);
TUTTI_SAME(ncclFloat16);
TUTTI_SAME(ncclFloat32);
TUTTI_SAME(ncclFloat64);
TUTTI_SAME(ncclBfloat16);
TUTTI_SAME(ncclScalarDevice);
TUTTI_SAME(ncclScalarHostImmediate);
#undef TUTTI_SAME
static_assert(kOurVersions[0] == NCCL_VERSION(2, 8, 4));
static_assert(kOurVersions[1] == NCCL_VERSION(2, 14, 3));
static_assert(kOurVersions[2] == NCCL_VERSION(2, 28, 9));
static_assert(kOurIdBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(sizeof(ours::ncclUniqueId) == sizeof(::ncclUniqueId));

// The configuration: ours is how theirs begins.
#define TUTTI_SAME_PLACE(member)                                                           \
  static_assert(offsetof(ours::ncclConfig_t, member) == offsetof(::ncclConfig_t, member)); \
  static_assert(                                                                           \
      std::is_same_v<decltype(ours::ncclConfig_t::member), decltype(::ncclConfig_t::member)>)
TUTTI_SAME_PLACE(size);
TUTTI_SAME_PLACE(magic);
TUTTI_SAME_PLACE(version);
TUTTI_SAME_PLACE(blocking);
#undef TUTTI_SAME_PLACE
static_assert(sizeof(ours::ncclConfig_t) <= sizeof(::ncclConfig_t));

// Functions: as many parameters, each of the same kind and size.
template <class T>
constexpr int kKind = std::is_pointer_v<T> ? 1
                      : std::is_enum_v<T>  ? 2
                      : std::is_class_v<T> ? 3
                                           : 4;
template <class Ours, class Theirs>
constexpr bool kAlike = kKind<Ours> == kKind<Theirs> && sizeof(Ours) == sizeof(Theirs);
template <class Ours, class Theirs>
constexpr bool kSameCall = false;
template <class OurResult, class... Ours, class Result, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
constexpr bool kSameCall<OurResult(Ours...), Result(Theirs...)> =
    kAlike<OurResult, Result> && (kAlike<Ours, Theirs> && ...);

#define TUTTI_SAME_CALL(name) static_assert(kSameCall<ours::name##_t, decltype(::name)>, #name)
TUTTI_SAME_CALL(ncclGetVersion);
TUTTI_SAME_CALL(ncclGetUniqueId);
TUTTI_SAME_CALL(ncclCommInitRankConfig);
TUTTI_SAME_CALL(ncclCommFinalize);
TUTTI_SAME_CALL(ncclCommDestroy);
TUTTI_SAME_CALL(ncclCommAbort);
TUTTI_SAME_CALL(ncclGetErrorString);
TUTTI_SAME_CALL(ncclGetLastError);
TUTTI_SAME_CALL(ncclCommGetAsyncError);
TUTTI_SAME_CALL(ncclRedOpCreatePreMulSum);
TUTTI_SAME_CALL(ncclRedOpDestroy);
TUTTI_SAME_CALL(ncclReduce);
TUTTI_SAME_CALL(ncclBroadcast);
TUTTI_SAME_CALL(ncclAllReduce);
TUTTI_SAME_CALL(ncclReduceScatter);
TUTTI_SAME_CALL(ncclAllGather);
TUTTI_SAME_CALL(ncclSend);
TUTTI_SAME_CALL(ncclRecv);
TUTTI_SAME_CALL(ncclGroupStart);
TUTTI_SAME_CALL(ncclGroupEnd);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
TUTTI_SAME_CALL(ncclAlltoAll);
TUTTI_SAME_CALL(ncclGather);
TUTTI_SAME_CALL(ncclScatter);
#endif
#undef TUTTI_SAME_CALL

/// What a macro initialises cannot be compared before the program runs.
TEST(NcclHeader, BeginsItsConfigurationAsOurs) {
  const ::ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const ours::ncclConfig_t own;
  EXPECT_EQ(own.magic, theirs.magic);
  EXPECT_LE(own.version, theirs.version);
  EXPECT_EQ(own.size, sizeof own);
}

}  // namespace
