//! The scripts of the repository.

use std::sync::LazyLock;
use tollgate_redis::ControlScript;

/// All scripts.
pub(super) static SCRIPTS: LazyLock<RepositoryScripts> = LazyLock::new(|| RepositoryScripts {
    publish: ControlScript::new(include_str!("../publish.lua")),
    read_revision: ControlScript::new(include_str!("../read_revision.lua")),
    list_revisions: ControlScript::new(include_str!("../list_revisions.lua")),
    read_heads: ControlScript::new(include_str!("../read_heads.lua")),
    read_state: ControlScript::new(include_str!("../read_state.lua")),
    replace_state: ControlScript::new(include_str!("../replace_state.lua")),
    append_audit: ControlScript::new(include_str!("../append_audit.lua")),
    list_audit: ControlScript::new(include_str!("../list_audit.lua")),
    restore_audit: ControlScript::new(include_str!("../restore_audit.lua")),
    change_token: ControlScript::new(include_str!("../change_token.lua")),
    list_tokens: ControlScript::new(include_str!("../list_tokens.lua")),
    restore_tokens: ControlScript::new(include_str!("../restore_tokens.lua")),
});

/// A script for each operation.
pub(super) struct RepositoryScripts {
    pub(super) publish: ControlScript,
    pub(super) read_revision: ControlScript,
    pub(super) list_revisions: ControlScript,
    pub(super) read_heads: ControlScript,
    pub(super) read_state: ControlScript,
    pub(super) replace_state: ControlScript,
    pub(super) append_audit: ControlScript,
    pub(super) list_audit: ControlScript,
    pub(super) restore_audit: ControlScript,
    pub(super) change_token: ControlScript,
    pub(super) list_tokens: ControlScript,
    pub(super) restore_tokens: ControlScript,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;
    use tollgate_redis::permissions::{COMMANDS, CONTROL_COMMANDS};

    /// The documented permissions are enough for the scripts, and none is there in vain.
    #[test]
    fn scripts_use_permitted_commands() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/repository");
        let mut used = BTreeSet::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "lua") {
                let script = fs::read_to_string(path).unwrap();
                let calls = script.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
                used.extend(calls.map(str::to_lowercase));
            }
        }
        let permitted: BTreeSet<String> =
            COMMANDS.into_iter().chain(CONTROL_COMMANDS).map(str::to_owned).collect();
        assert_eq!(used.difference(&permitted).count(), 0, "{used:?}");
        for command in CONTROL_COMMANDS.into_iter().filter(|command| *command != "subscribe") {
            assert!(used.contains(command), "{command} is not used");
        }
    }
}
