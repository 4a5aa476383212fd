//! Compiles the programs' sources to native code, where there is a C compiler.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(native_c)");
    let examples = "../../examples/programs";
    let sources = [
        "programs/empty.c".to_owned(),
        format!("{examples}/btree_search.c"),
        format!("{examples}/bpfkv_get.c"),
        format!("{examples}/rocksdb_block.c"),
    ];
    let headers = ["include/outboard_program.h".to_owned(), format!("{examples}/rocksdb_format.h")];
    for source in sources.iter().chain(&headers) {
        println!("cargo::rerun-if-changed={source}");
    }
    let outcome = cc::Build::new()
        .files(&sources)
        .include("include")
        .opt_level(2)
        .flag_if_supported("-march=native")
        .flag_if_supported("-Wno-unused-variable")
        .try_compile("programs");
    match outcome {
        Ok(()) => println!("cargo::rustc-cfg=native_c"),
        Err(error) => println!("cargo::warning=native C is not measured: {error}"),
    }
}
