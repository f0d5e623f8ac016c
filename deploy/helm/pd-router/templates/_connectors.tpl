{{/* The environment by which an engine of a pool passes KV caches on. Each takes (pool, root). */}}

{{- define "pd-router.nixl" -}}
{{- $roles := dict "prefill" "kv_producer" "decode" "kv_consumer" -}}
- name: KV_TRANSFER_CONFIG
  value: '{"kv_connector":"NixlConnector","kv_role":"{{ get $roles (first .) }}"}'
# Address where the other side requests KV caches. The default, localhost, is wrong for two hosts.
- name: VLLM_NIXL_SIDE_CHANNEL_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}

{{- define "pd-router.lmcacheEnv" -}}
{{- if eq (first .) "prefill" -}}
- name: KV_TRANSFER_CONFIG
  value: '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_producer"}'
- name: LMCACHE_PD_ROLE
  value: sender
- name: LMCACHE_PD_PROXY_HOST
  value: pd-router-lmcache
- name: LMCACHE_PD_PROXY_PORT
  value: "7500"
{{- else -}}
- name: KV_TRANSFER_CONFIG
  value: >-
    {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_consumer",
    "kv_connector_extra_config":{"skip_last_n_tokens":1}}
- name: LMCACHE_PD_ROLE
  value: receiver
- name: LMCACHE_PD_PEER_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: LMCACHE_PD_PEER_INIT_PORT
  value: {{ include "pd-router.lmcachePorts" (list 7300 (last .)) | quote }}
- name: LMCACHE_PD_PEER_ALLOC_PORT
  value: {{ include "pd-router.lmcachePorts" (list 7400 (last .)) | quote }}
{{- end }}
{{- end }}

{{/* A port for each GPU of an engine, from the first one on: (port, root). */}}
{{- define "pd-router.lmcachePorts" -}}
{{- $first := first . -}}
{{- $ports := list -}}
{{- range $rank := until (int (last .).Values.engine.tensorParallelSize) -}}
{{- $ports = append $ports (toString (add $first $rank)) -}}
{{- end -}}
{{- join "," $ports -}}
{{- end }}
