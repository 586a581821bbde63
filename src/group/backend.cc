#include "tutti/backend.h"

#include "tutti/observer.h"

namespace tutti {

Backend::~Backend() = default;
Observer::~Observer() = default;

}  // namespace tutti
