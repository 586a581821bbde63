// The declarations of nccl.h that are used here, copied from NCCL 2.28.9, so that neither NCCL nor
// CUDA is needed to build this. What functions have is a type; libnccl is opened while the program
// runs (library.h). tests/plugins/nccl_header_test.cc compares them with nccl.h where there is one.
//
// NCCL's licence, which these declarations are under:
//
// Copyright (c) 2015-2020, NVIDIA CORPORATION. All rights reserved.
//
// Redistribution and use in source and binary forms, with or without
// modification, are permitted provided that the following conditions
// are met:
//  * Redistributions of source code must retain the above copyright
//    notice, this list of conditions and the following disclaimer.
//  * Redistributions in binary form must reproduce the above copyright
//    notice, this list of conditions and the following disclaimer in the
//    documentation and/or other materials provided with the distribution.
//  * Neither the name of NVIDIA CORPORATION, Lawrence Berkeley National
//    Laboratory, the U.S. Department of Energy, nor the names of their
//    contributors may be used to endorse or promote products derived
//    from this software without specific prior written permission.
//
// THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS ``AS IS'' AND ANY
// EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
// IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR
// PURPOSE ARE DISCLAIMED.  IN NO EVENT SHALL THE COPYRIGHT OWNER OR
// CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL,
// EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO,
// PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR
// PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY
// OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT
// (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE
// OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
//
// The U.S. Department of Energy funded the development of this software
// under subcontract 7078610 with Lawrence Berkeley National Laboratory.
#pragma once

#include <cstddef>

namespace tutti::nccl_backend {

// NOLINTBEGIN(readability-identifier-naming): the names are NCCL's.

struct ncclComm;
using ncclComm_t = ncclComm*;
using cudaStream_t = void*;  // of CUDA's run-time, and opaque there, too

inline constexpr int NCCL_UNIQUE_ID_BYTES = 128;
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclRedOp_t {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclMaxRedOp = 0x7fffffff,  // those between are made while the program runs
};

enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

enum ncclScalarResidence_t { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

/// The first members, which have been there since NCCL 2.14: it takes the size and the version as
/// what the program was compiled with, and gives later members their defaults.
struct ncclConfig_t {
  std::size_t size = sizeof(ncclConfig_t);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 1;
};

constexpr int NCCL_VERSION(int major, int minor, int patch) {
  return major <= 2 && minor <= 8 ? major * 1000 + minor * 100 + patch
                                  : major * 10000 + minor * 100 + patch;
}

using ncclGetVersion_t = ncclResult_t(int* version);
using ncclGetUniqueId_t = ncclResult_t(ncclUniqueId* id);
using ncclCommInitRankConfig_t = ncclResult_t(ncclComm_t* comm, int ranks, ncclUniqueId id,
                                              int rank, ncclConfig_t* config);
using ncclCommFinalize_t = ncclResult_t(ncclComm_t comm);
using ncclCommDestroy_t = ncclResult_t(ncclComm_t comm);
using ncclCommAbort_t = ncclResult_t(ncclComm_t comm);
using ncclGetErrorString_t = const char*(ncclResult_t result);
using ncclGetLastError_t = const char*(ncclComm_t comm);
using ncclCommGetAsyncError_t = ncclResult_t(ncclComm_t comm, ncclResult_t* error);
using ncclRedOpCreatePreMulSum_t = ncclResult_t(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                                ncclScalarResidence_t residence, ncclComm_t comm);
using ncclRedOpDestroy_t = ncclResult_t(ncclRedOp_t op, ncclComm_t comm);
using ncclReduce_t = ncclResult_t(const void* input, void* output, std::size_t count,
                                  ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                                  cudaStream_t stream);
using ncclBroadcast_t = ncclResult_t(const void* input, void* output, std::size_t count,
                                     ncclDataType_t type, int root, ncclComm_t comm,
                                     cudaStream_t stream);
using ncclAllReduce_t = ncclResult_t(const void* input, void* output, std::size_t count,
                                     ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                     cudaStream_t stream);
using ncclReduceScatter_t = ncclResult_t(const void* input, void* output, std::size_t part,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream);
using ncclAllGather_t = ncclResult_t(const void* input, void* output, std::size_t part,
                                     ncclDataType_t type, ncclComm_t comm, cudaStream_t stream);
using ncclAlltoAll_t = ncclAllGather_t;
using ncclGather_t = ncclBroadcast_t;
using ncclScatter_t = ncclBroadcast_t;
using ncclSend_t = ncclResult_t(const void* input, std::size_t count, ncclDataType_t type, int peer,
                                ncclComm_t comm, cudaStream_t stream);
using ncclRecv_t = ncclResult_t(void* output, std::size_t count, ncclDataType_t type, int peer,
                                ncclComm_t comm, cudaStream_t stream);
using ncclGroupStart_t = ncclResult_t();
using ncclGroupEnd_t = ncclResult_t();

// NOLINTEND(readability-identifier-naming)

}  // namespace tutti::nccl_backend
