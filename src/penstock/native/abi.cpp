#include "api.h"

// Raised whenever the signature or meaning of an entry point changes; the Python side refuses any other number.
PS_EXPORT std::int32_t ps_abi_version() { return 1; }
