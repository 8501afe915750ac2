// Which sanitizer a test is compiled with. GCC says it by macros of its own, clang by features.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define FLASHOMP_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define FLASHOMP_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define FLASHOMP_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__)
#define FLASHOMP_THREAD_SANITIZER 1
#elif defined(__has_feature)
#define FLASHOMP_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define FLASHOMP_THREAD_SANITIZER 0
#endif
