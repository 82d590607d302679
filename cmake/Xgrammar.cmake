# Offers the target folio_xgrammar: the C++ library of xgrammar, built from the source archive that
# its Python package is made of. Its Python bindings and their dependencies are left out.

include(FetchContent)

set(FOLIO_XGRAMMAR_TARBALL "${CMAKE_SOURCE_DIR}/build/deps/xgrammar-0.2.8.tar.gz"
    CACHE FILEPATH "xgrammar source archive, from cmake/fetch_xgrammar.sh")
if(NOT EXISTS "${FOLIO_XGRAMMAR_TARBALL}")
  message(FATAL_ERROR
    "FOLIO_XGRAMMAR_TARBALL is ${FOLIO_XGRAMMAR_TARBALL}, which does not exist. "
    "Run cmake/fetch_xgrammar.sh build/deps, or set the variable to the archive.")
endif()

# Its CMakeLists.txt is for its Python package: it is not read.
FetchContent_Declare(xgrammar
  DOWNLOAD_EXTRACT_TIMESTAMP ON
  URL "${FOLIO_XGRAMMAR_TARBALL}"
  URL_HASH SHA256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
  SOURCE_SUBDIR include)
FetchContent_MakeAvailable(xgrammar)

file(GLOB_RECURSE xgrammar_sources "${xgrammar_SOURCE_DIR}/cpp/*.cc")
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(folio_xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
target_compile_features(folio_xgrammar PUBLIC cxx_std_17)
# It has variants of types that are incomplete, which clang takes with the vectors of C++17 only.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set_target_properties(folio_xgrammar PROPERTIES CXX_STANDARD 17)
endif()
target_include_directories(folio_xgrammar SYSTEM PUBLIC
  ${xgrammar_SOURCE_DIR}/include
  ${xgrammar_SOURCE_DIR}/3rdparty/dlpack/include
  PRIVATE ${xgrammar_SOURCE_DIR}/3rdparty/picojson)
# Errors and warnings go through hooks of ours (engine/grammar/compiled_grammar.cc).
target_compile_definitions(folio_xgrammar PRIVATE
  XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# Its warnings are not ours, also where warnings are errors.
target_compile_options(folio_xgrammar PRIVATE -w)
target_link_libraries(folio_xgrammar PRIVATE Threads::Threads)
# Its sources are parsed together, in half the time.
set_target_properties(folio_xgrammar PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
