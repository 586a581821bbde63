// All of Tutti but the libtorch adaptor (<tutti/torch.h>) and the test kit (<tutti/test_kit.h>).
#pragma once

#include "tutti/backend.h"
#include "tutti/buffer.h"
#include "tutti/codec.h"
#include "tutti/collectives.h"
#include "tutti/config.h"
#include "tutti/error.h"
#include "tutti/init.h"
#include "tutti/log.h"
#include "tutti/objects.h"
#include "tutti/observer.h"
#include "tutti/process_group.h"
#include "tutti/store.h"
#include "tutti/terminate.h"
#include "tutti/types.h"
#include "tutti/version.h"
#include "tutti/work.h"
