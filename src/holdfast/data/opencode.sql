-- The database of opencode 1.18.33 [M]: its tables and indexes, and the migrations that it counts as done.

CREATE TABLE account (
    id text PRIMARY KEY, email text NOT NULL, url text NOT NULL, access_token text NOT NULL,
    refresh_token text NOT NULL, token_expiry integer, time_created integer NOT NULL, time_updated integer NOT NULL
);
CREATE TABLE account_state (
    id integer PRIMARY KEY, active_account_id text REFERENCES account(id) ON DELETE SET NULL, active_org_id text
);
CREATE TABLE control_account (
    email text NOT NULL, url text NOT NULL, access_token text NOT NULL, refresh_token text NOT NULL,
    token_expiry integer, active integer NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL,
    PRIMARY KEY (email, url)
);
CREATE TABLE credential (
    id text PRIMARY KEY, integration_id text, label text NOT NULL, value text NOT NULL, connector_id text,
    method_id text, active integer, time_created integer NOT NULL, time_updated integer NOT NULL
);
CREATE TABLE data_migration (name text PRIMARY KEY, time_completed integer NOT NULL);
CREATE TABLE event (
    id text PRIMARY KEY, aggregate_id text NOT NULL REFERENCES event_sequence(aggregate_id) ON DELETE CASCADE,
    seq integer NOT NULL, type text NOT NULL, data text NOT NULL
);
CREATE TABLE event_sequence (aggregate_id text PRIMARY KEY, seq integer NOT NULL, owner_id text);
CREATE TABLE message (
    id text PRIMARY KEY, session_id text NOT NULL REFERENCES session(id) ON DELETE CASCADE,
    time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL
);
CREATE TABLE migration (id text PRIMARY KEY, time_completed integer NOT NULL);
CREATE TABLE part (
    id text PRIMARY KEY, message_id text NOT NULL REFERENCES message(id) ON DELETE CASCADE, session_id text NOT NULL,
    time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL
);
CREATE TABLE permission (
    id text PRIMARY KEY, project_id text NOT NULL REFERENCES project(id) ON DELETE CASCADE, action text NOT NULL,
    resource text NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL
);
CREATE TABLE project (
    id text PRIMARY KEY, worktree text NOT NULL, vcs text, name text, icon_url text, icon_url_override text,
    icon_color text, time_created integer NOT NULL, time_updated integer NOT NULL, time_initialized integer,
    sandboxes text NOT NULL, commands text
);
CREATE TABLE project_directory (
    project_id text NOT NULL REFERENCES project(id) ON DELETE CASCADE, directory text NOT NULL, type text,
    strategy text, time_created integer NOT NULL, PRIMARY KEY (project_id, directory)
);
CREATE TABLE session (
    id text PRIMARY KEY, project_id text NOT NULL REFERENCES project(id) ON DELETE CASCADE, workspace_id text,
    parent_id text, slug text NOT NULL, directory text NOT NULL, path text, title text NOT NULL,
    version text NOT NULL, share_url text, summary_additions integer, summary_deletions integer,
    summary_files integer, summary_diffs text, metadata text, cost real DEFAULT 0 NOT NULL,
    tokens_input integer DEFAULT 0 NOT NULL, tokens_output integer DEFAULT 0 NOT NULL,
    tokens_reasoning integer DEFAULT 0 NOT NULL, tokens_cache_read integer DEFAULT 0 NOT NULL,
    tokens_cache_write integer DEFAULT 0 NOT NULL, revert text, permission text, agent text, model text,
    time_created integer NOT NULL, time_updated integer NOT NULL, time_compacting integer, time_archived integer
);
CREATE TABLE session_context_epoch (
    session_id text PRIMARY KEY REFERENCES session(id) ON DELETE CASCADE, baseline text NOT NULL,
    snapshot text NOT NULL, baseline_seq integer NOT NULL
);
CREATE TABLE session_input (
    id text PRIMARY KEY, session_id text NOT NULL REFERENCES session(id) ON DELETE CASCADE, prompt text NOT NULL,
    delivery text NOT NULL, admitted_seq integer NOT NULL, promoted_seq integer, time_created integer NOT NULL
);
CREATE TABLE session_message (
    id text PRIMARY KEY, session_id text NOT NULL REFERENCES session(id) ON DELETE CASCADE, type text NOT NULL,
    seq integer NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL
);
CREATE TABLE session_share (
    session_id text PRIMARY KEY REFERENCES session(id) ON DELETE CASCADE, id text NOT NULL, secret text NOT NULL,
    url text NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL
);
CREATE TABLE todo (
    session_id text NOT NULL REFERENCES session(id) ON DELETE CASCADE, content text NOT NULL, status text NOT NULL,
    priority text NOT NULL, position integer NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL,
    PRIMARY KEY (session_id, position)
);
CREATE TABLE workspace (
    id text PRIMARY KEY, type text NOT NULL, name text DEFAULT '' NOT NULL, branch text, directory text, extra text,
    project_id text NOT NULL REFERENCES project(id) ON DELETE CASCADE, time_used integer NOT NULL
);

CREATE UNIQUE INDEX event_aggregate_seq_idx ON event (aggregate_id, seq);
CREATE INDEX event_aggregate_type_seq_idx ON event (aggregate_id, type, seq);
CREATE INDEX message_session_time_created_id_idx ON message (session_id, time_created, id);
CREATE INDEX part_message_id_id_idx ON part (message_id, id);
CREATE INDEX part_session_idx ON part (session_id);
CREATE UNIQUE INDEX permission_project_action_resource_idx ON permission (project_id, action, resource);
CREATE UNIQUE INDEX session_input_session_admitted_seq_idx ON session_input (session_id, admitted_seq);
CREATE INDEX session_input_session_pending_delivery_seq_idx ON session_input (session_id, promoted_seq, delivery, admitted_seq);
CREATE UNIQUE INDEX session_input_session_promoted_seq_idx ON session_input (session_id, promoted_seq);
CREATE UNIQUE INDEX session_message_session_seq_idx ON session_message (session_id, seq);
CREATE INDEX session_message_session_time_created_id_idx ON session_message (session_id, time_created, id);
CREATE INDEX session_message_session_type_seq_idx ON session_message (session_id, type, seq);
CREATE INDEX session_message_time_created_idx ON session_message (time_created);
CREATE INDEX session_parent_idx ON session (parent_id);
CREATE INDEX session_project_idx ON session (project_id);
CREATE INDEX session_workspace_idx ON session (workspace_id);
CREATE INDEX todo_session_idx ON todo (session_id);

INSERT INTO migration (time_completed, id) VALUES
    (0, '20260127222353_familiar_lady_ursula'),
    (0, '20260211171708_add_project_commands'),
    (0, '20260213144116_wakeful_the_professor'),
    (0, '20260225215848_workspace'),
    (0, '20260227213759_add_session_workspace_id'),
    (0, '20260228203230_blue_harpoon'),
    (0, '20260303231226_add_workspace_fields'),
    (0, '20260309230000_move_org_to_state'),
    (0, '20260312043431_session_message_cursor'),
    (0, '20260323234822_events'),
    (0, '20260410174513_workspace-name'),
    (0, '20260413175956_chief_energizer'),
    (0, '20260423070820_add_icon_url_override'),
    (0, '20260427172553_slow_nightmare'),
    (0, '20260428004200_add_session_path'),
    (0, '20260501142318_next_venus'),
    (0, '20260504145000_add_sync_owner'),
    (0, '20260507164347_add_workspace_time'),
    (0, '20260510033149_session_usage'),
    (0, '20260511000411_data_migration_state'),
    (0, '20260511173437_session-metadata'),
    (0, '20260601010001_normalize_storage_paths'),
    (0, '20260601202201_amazing_prowler'),
    (0, '20260602002951_lowly_union_jack'),
    (0, '20260602182828_add_project_directories'),
    (0, '20260603001617_session_message_projection_indexes'),
    (0, '20260603040000_session_message_projection_order'),
    (0, '20260603141458_session_input_inbox'),
    (0, '20260603160727_jittery_ezekiel_stane'),
    (0, '20260604172448_event_sourced_session_input'),
    (0, '20260605003541_add_session_context_snapshot'),
    (0, '20260605042240_add_context_epoch_agent'),
    (0, '20260611035744_credential'),
    (0, '20260611192811_lush_chimera'),
    (0, '20260612174303_project_dir_strategy'),
    (0, '20260622142730_simplify_session_context_epoch'),
    (0, '20260622170816_reset_v2_session_state'),
    (0, '20260622202450_simplify_session_input');
