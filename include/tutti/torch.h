// Data-parallel training on libtorch: all of <tutti/torch/...>.
#pragma once

#include "tutti/init.h"
#include "tutti/torch/checkpoint.h"
#include "tutti/torch/clip.h"
#include "tutti/torch/communication_hook.h"
#include "tutti/torch/data_parallel.h"
#include "tutti/torch/sampler.h"
#include "tutti/torch/sync_batch_norm.h"
#include "tutti/torch/tensor.h"
