//! Compiles the protocol of the RLS door, without `protoc`.

use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;
use std::error::Error;
use std::path::PathBuf;

const FILE: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut files = protox::compile([FILE], ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // For reflection.
    std::fs::write(out.join("rls_descriptors.bin"), files.encode_to_vec())?;
    read_entries_as_bytes(&mut files);
    tonic_prost_build::configure()
        // Bodies of refusals are made as `Bytes`.
        .bytes(".envoy.service.ratelimit.v3.RateLimitResponse.raw_body")
        .include_file("rls_proto.rs")
        .compile_fds(files)?;
    Ok(())
}

/// Envoy puts header values into descriptors as they are. A message with text that is not UTF-8 would be an error, which Envoy
/// admits. Texts and bytes are the same on the wire.
fn read_entries_as_bytes(files: &mut FileDescriptorSet) {
    let messages = files.file.iter_mut().flat_map(|file| &mut file.message_type);
    let descriptors = messages.filter(|message| message.name() == "RateLimitDescriptor");
    let entries = descriptors.flat_map(|message| &mut message.nested_type);
    for field in entries.filter(|entry| entry.name() == "Entry").flat_map(|entry| &mut entry.field) {
        field.set_type(Type::Bytes);
    }
}
