# Toolchain file: builds for arm64 with Debian's cross compiler and the libraries that
# cmake/fetch_arm64.sh unpacked; programs run under qemu-user. See ./dev arm64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(ROOT ${CMAKE_CURRENT_LIST_DIR}/../build/deps/arm64)
set(CMAKE_FIND_ROOT_PATH ${ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${ROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)

# OpenSSL has headers that differ between architectures.
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${ROOT}/usr/include/aarch64-linux-gnu)

# Libraries that libraries need, when linking and when running.
set(LIBRARIES ${ROOT}/usr/lib/aarch64-linux-gnu:${ROOT}/lib/aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,${LIBRARIES})
set(CMAKE_CROSSCOMPILING_EMULATOR
  qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${LIBRARIES})
