//! Compiles the protocol of the RLS door, without `protoc`.

use prost::Message;
use std::error::Error;
use std::path::PathBuf;

const FILE: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile([FILE], ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // For reflection.
    std::fs::write(out.join("rls_descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        // Bodies of refusals are made as `Bytes`.
        .bytes(".envoy.service.ratelimit.v3.RateLimitResponse.raw_body")
        .include_file("rls_proto.rs")
        .compile_fds(files)?;
    Ok(())
}
