#include "logstore.h"
uint32_t ls_crc32c(uint32_t crc, uintptr_t bytes, int64_t size) { (void)bytes; (void)size; return crc; }
int64_t ls_crc32c_with(int32_t v, uint32_t crc, uintptr_t bytes, int64_t size) { (void)v; (void)bytes; (void)size; return crc; }
