# Flags that limit what an error in memory can be used for: stack canaries, checked copies, probed stacks, marked branch
# targets, position-independent code, relocations that cannot be written. Sanitizers bring their own checks.
# tests/hardening_test.py looks at the programs.
if(FOLIO_SANITIZE OR FOLIO_FUZZ)
  return()
endif()
include(CheckCXXCompilerFlag)
set(flags -fPIE -fstack-protector-strong)
# -fcf-protection is of x86, -mbranch-protection of arm64.
foreach(flag -fstack-clash-protection -fcf-protection -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "FOLIO_HAS${flag}" known)
  check_cxx_compiler_flag(${flag} ${known})
  if(${known})
    list(APPEND flags ${flag})
  endif()
endforeach()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
# The C library checks only what is optimised.
add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
add_link_options("LINKER:-z,relro,-z,now,-z,noexecstack")
