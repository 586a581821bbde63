# What a Python wheel holds: the library and the command in tutti/_lib with what they need beside them, and the backend of
# torch.distributed if there is one. libcrypto is inside the library: Python may have loaded another one.
add_custom_target(tutti_wheel DEPENDS tutti tutti_cli)
set(TUTTI_WHEEL_FOLDER tutti/_lib)
set_target_properties(tutti PROPERTIES VERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "$ORIGIN")  # no links
set_target_properties(tutti_cli PROPERTIES INSTALL_RPATH "$ORIGIN")
# A run path that counts for what hwloc needs, too.
target_link_options(tutti_cli PRIVATE -Wl,--disable-new-dtags)
foreach(target tutti tutti_cli)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,libcrypto.a -s)
endforeach()
install(TARGETS tutti LIBRARY DESTINATION ${TUTTI_WHEEL_FOLDER} NAMELINK_SKIP COMPONENT wheel
  FILE_SET HEADERS DESTINATION include COMPONENT none)
install(TARGETS tutti_cli RUNTIME DESTINATION ${TUTTI_WHEEL_FOLDER} COMPONENT wheel)
install(CODE "
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES \"$<TARGET_FILE:tutti>\" EXECUTABLES \"$<TARGET_FILE:tutti_cli>\" RESOLVED_DEPENDENCIES_VAR found
    PRE_EXCLUDE_REGEXES \"^ld-linux\" \"^lib(c|m|dl|rt|pthread|stdc\\\\+\\\\+|gcc_s|tutti)\\\\.so\")
  foreach(path IN LISTS found)
    get_filename_component(name \"\${path}\" NAME)
    file(REAL_PATH \"\${path}\" path)
    file(COPY_FILE \"\${path}\" \"\${CMAKE_INSTALL_PREFIX}/${TUTTI_WHEEL_FOLDER}/\${name}\")
  endforeach()" COMPONENT wheel)
if(TUTTI_PYTHON_ENABLED)
  add_dependencies(tutti_wheel tutti_c10d)
  target_link_options(tutti_c10d PRIVATE -s)
  install(TARGETS tutti_c10d LIBRARY DESTINATION tutti/torch COMPONENT wheel)
  install(FILES ${TUTTI_PYTHON_FOLDER}/tutti/torch/_built_for.py DESTINATION tutti/torch COMPONENT wheel)
endif()
