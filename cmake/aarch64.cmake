# Toolchain of the preset aarch64: Debian's cross compiler, and qemu, through which CTest runs what it made.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu) # where Debian puts AArch64's libc

# Libraries are AArch64's, unpacked here by tools/check_aarch64; headers without a library are this machine's.
set(CMAKE_FIND_ROOT_PATH ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-packages)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
