# Offers the target folio_sentencepiece: the SentencePiece 0.1.97 library, built from source with
# the system's protobuf. Debian's own libsentencepiece carries a second copy of protobuf and cannot
# share a process with gRPC. Its headers must not meet Abseil's in one translation unit.

include(FetchContent)
find_package(Protobuf REQUIRED)

set(FOLIO_SENTENCEPIECE_TARBALL "${CMAKE_SOURCE_DIR}/build/deps/sentencepiece_0.1.97.orig.tar.gz"
    CACHE FILEPATH "SentencePiece source archive, from cmake/fetch_sentencepiece.sh")
if(NOT EXISTS "${FOLIO_SENTENCEPIECE_TARBALL}")
  message(FATAL_ERROR
    "FOLIO_SENTENCEPIECE_TARBALL is ${FOLIO_SENTENCEPIECE_TARBALL}, which does not exist. "
    "Run cmake/fetch_sentencepiece.sh build/deps, or set the variable to the archive.")
endif()

set(SPM_ENABLE_SHARED OFF CACHE BOOL "" FORCE)
set(SPM_ENABLE_TCMALLOC OFF CACHE BOOL "" FORCE)
set(SPM_USE_BUILTIN_PROTOBUF OFF CACHE BOOL "" FORCE)
FetchContent_Declare(sentencepiece
  DOWNLOAD_EXTRACT_TIMESTAMP ON
  URL "${FOLIO_SENTENCEPIECE_TARBALL}"
  URL_HASH SHA256=56430381f45dc6debfd2e0cbde4f039f9499c49ca825af184b0cbf318c17a18f)
FetchContent_GetProperties(sentencepiece)
if(NOT sentencepiece_POPULATED)
  FetchContent_Populate(sentencepiece)
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5)  # CMake 4 refuses the 3.1 that it asks for
  add_subdirectory(${sentencepiece_SOURCE_DIR} ${sentencepiece_BINARY_DIR} EXCLUDE_FROM_ALL)
endif()
# Its warnings are not ours, also where warnings are errors.
target_compile_options(sentencepiece-static PRIVATE -w)

add_library(folio_sentencepiece INTERFACE)
add_dependencies(folio_sentencepiece sentencepiece-static)
# The second directory holds the generated sentencepiece_model.pb.h, the third the string_view
# class that the library itself was compiled with.
target_include_directories(folio_sentencepiece SYSTEM INTERFACE
  ${sentencepiece_SOURCE_DIR}/src
  ${sentencepiece_BINARY_DIR}/src
  ${sentencepiece_SOURCE_DIR})
target_compile_definitions(folio_sentencepiece INTERFACE _USE_INTERNAL_STRING_VIEW)
# By file: the target would add libprotobuf-lite.so beside libprotobuf.so.
target_link_libraries(folio_sentencepiece INTERFACE
  $<TARGET_FILE:sentencepiece-static> protobuf::libprotobuf)
